/*
 * load: asks an upstream for things, straight or through a proxy, checks every answer, and prints
 * what that took as one JSON object.
 *
 * Theory of operation
 * -------------------
 * One thread a connection («lane»), blocking sockets. Each lane goes round: be connected, send,
 * read the whole answer, judge it, note when it began and ended. Two instants in time bound the
 * window that counts:
 *
 *         start ......... open ........................ close ....
 *           warm-up, uncounted |  counted: began and ended here  | last requests, uncounted
 *
 * so connections and certificate caches are warm before the first number. The main thread reads the
 * CPU time of the watched processes at the two edges, which gives the CPU cost of a request free of
 * start-up. With --requests the window is the whole run.
 *
 * An answer counts only with the wanted status AND the wanted body length (for an upload: with the
 * number of bytes that the upstream says it received). Everything else is a fault with a name, so
 * a fast error page never looks like a fast proxy.
 *
 *     --via none       TCP to the target itself: the yardstick
 *     --via absolute   GET http://target/path to a forward proxy
 *     --via connect    CONNECT target, then (with --tls) a handshake inside. Inspected or passed
 *                      through looks the same from here: «issuer» in the result tells which it was
 *     --events         the answer is a stream of server-sent events, each holding the sender's
 *                      CLOCK_MONOTONIC in ns (events.c); a sample is the delay of one event
 *
 * One file, no library but OpenSSL. Options: ./load --help.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <getopt.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { ROOM = 64 * 1024, MAX_PIDS = 64, MAX_LANES = 4096 };
enum via { NONE, ABSOLUTE, CONNECT };
enum fault { CONNECTING, REFUSED, HANDSHAKE, SENDING, RECEIVING, MALFORMED, STATUS, LENGTH, FAULTS };
static const char *const VIA[] = {"none", "absolute", "connect"};
static const char *const FAULT[] = {"connect",  "proxy_refused", "tls",    "send",
                                    "receive", "malformed",     "status", "length"};

/* ---- what to do: filled from the options, then read only --------------------------------------- */

static struct plan {
    enum via via;
    char host[256];       /* the target's name: Host and SNI */
    int port;
    struct sockaddr_storage peer; /* where TCP goes: the target, or the proxy */
    socklen_t peer_size;
    bool tls, resume, fresh, events;
    const char *ca_file, *path;
    char headers[4096], proxy_headers[4096];
    int lanes, timeout_s, want_status;
    long requests, upload, want_length; /* upload -1: GET.  want_length -1: any, -2: not given */
    double warmup_s, duration_s;
    int pids[MAX_PIDS], pid_count;
} plan = {.path = "/", .lanes = 16, .timeout_s = 10, .want_status = 200, .upload = -1,
          .want_length = -2, .warmup_s = 0.5, .duration_s = 3};

static int64_t window_open, window_close; /* ns; the lanes start after both are set */
static atomic_long tickets;               /* requests begun, for --requests */
static SSL_CTX *tls_context;
static char upload_text[ROOM];

static pthread_mutex_t words_lock = PTHREAD_MUTEX_INITIALIZER;
static char first_fault[300], issuer[200]; /* for the person who reads the result */

enum framing { EMPTY, SIZED, CHUNKED, UNTIL_END };

struct lane {
    pthread_t thread;
    int fd; /* -1: not connected */
    SSL *ssl;
    SSL_SESSION *session;
    char in[ROOM];
    size_t from, to; /* what is unread: in[from..to) */

    /* the answer being read */
    int status;
    bool ends; /* the connection cannot be used again */
    enum framing framing;
    long left; /* of the sized body, or of the chunk */
    bool in_chunk;

    /* what came of it, in the window (errors also after it) */
    long done, errors, early_errors, connections, resumed, fault[FAULTS], seen[600];
    int64_t down, up;
    uint32_t *sample_us;
    size_t samples, sample_room;
};

static int64_t clock_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

static bool counts(int64_t since, int64_t until) { return since >= window_open && until <= window_close; }

static _Noreturn void usage(const char *text)
{
    fprintf(stderr, "load: %s (try --help)\n", text);
    exit(2);
}

/* Notes a fault; returns false so that callers can hand it on. */
static bool fault(struct lane *l, enum fault kind, const char *detail)
{
    if (clock_ns() < window_open) l->early_errors++;
    else l->errors++, l->fault[kind]++;
    pthread_mutex_lock(&words_lock);
    if (!first_fault[0]) snprintf(first_fault, sizeof first_fault, "%s: %s", FAULT[kind], detail);
    pthread_mutex_unlock(&words_lock);
    return false;
}

/* ---- bytes --------------------------------------------------------------------------------------- */

static bool put(struct lane *l, const char *data, size_t size)
{
    for (ssize_t n; size; data += n, size -= (size_t)n) {
        n = l->ssl ? SSL_write(l->ssl, data, (int)size) : send(l->fd, data, size, MSG_NOSIGNAL);
        if (n <= 0) return false;
    }
    return true;
}

/* More bytes behind the unread ones; false at the end of the stream, on error, on time-out. */
static bool more(struct lane *l)
{
    if (l->from) {
        memmove(l->in, l->in + l->from, l->to - l->from);
        l->to -= l->from, l->from = 0;
    }
    if (l->to == ROOM) return false;
    ssize_t n = l->ssl ? SSL_read(l->ssl, l->in + l->to, (int)(ROOM - l->to))
                       : recv(l->fd, l->in + l->to, ROOM - l->to, 0);
    if (n <= 0) return false;
    l->to += (size_t)n;
    return true;
}

/* The text up to `mark`, which is consumed and cut off; NULL when the stream ends before it. */
static char *up_to(struct lane *l, const char *mark)
{
    size_t length = strlen(mark);
    char *found;
    while (!(found = memmem(l->in + l->from, l->to - l->from, mark, length)))
        if (!more(l)) return NULL;
    char *text = l->in + l->from;
    *found = '\0';
    l->from = (size_t)(found - l->in) + length;
    return text;
}

/* ---- answers -------------------------------------------------------------------------------------- */

/* The value of header `name` in `line`, or NULL. */
static const char *header(const char *line, const char *name)
{
    size_t n = strlen(name);
    if (strncasecmp(line, name, n) || line[n] != ':') return NULL;
    return line + n + 1 + strspn(line + n + 1, " \t");
}

/* Reads a head, past interim answers, and settles how the body is framed. */
static bool read_head(struct lane *l)
{
    do {
        char *line = up_to(l, "\r\n\r\n"), *next;
        int minor = 0;
        if (!line) return fault(l, RECEIVING, "no answer: the connection ended or timed out");
        if (sscanf(line, "HTTP/1.%d %d", &minor, &l->status) != 2 || l->status < 100 || l->status > 599)
            return fault(l, MALFORMED, "no HTTP/1 status line");
        l->ends = minor == 0, l->framing = UNTIL_END, l->left = 0, l->in_chunk = false;
        while ((next = strstr(line, "\r\n"))) {
            const char *value;
            line = next + 2;
            if ((value = header(line, "content-length")) && l->framing != CHUNKED)
                l->framing = SIZED, l->left = atol(value);
            else if ((value = header(line, "transfer-encoding")) && !strncasecmp(value, "chunked", 7))
                l->framing = CHUNKED, l->left = 0;
            else if ((value = header(line, "connection")))
                l->ends = !strncasecmp(value, "close", 5);
        }
    } while (l->status < 200);
    if (l->status == 204 || l->status == 304) l->framing = EMPTY;
    if (l->framing == UNTIL_END) l->ends = true;
    return true;
}

/* The next piece of the decoded body: its size, 0 at the end, -1 when it is cut short. */
static ssize_t next_piece(struct lane *l, const char **piece)
{
    if (l->framing == EMPTY) return 0;
    if (l->framing == CHUNKED && l->left == 0) {
        char *line, *end;
        if (l->in_chunk && !up_to(l, "\r\n")) return -1;
        if (!(line = up_to(l, "\r\n"))) return -1;
        l->left = strtol(line, &end, 16), l->in_chunk = true;
        if (end == line || l->left < 0) return -1;
        if (l->left == 0) { /* the last one; then trailers up to the empty line */
            do {
                if (!(line = up_to(l, "\r\n"))) return -1;
            } while (*line);
            l->framing = EMPTY;
            return 0;
        }
    }
    if (l->framing == SIZED && l->left == 0) return 0;
    if (l->from == l->to && !more(l)) return l->framing == UNTIL_END ? 0 : -1;
    size_t n = l->to - l->from;
    if (l->framing != UNTIL_END && n > (size_t)l->left) n = (size_t)l->left;
    *piece = l->in + l->from;
    l->from += n, l->left -= (long)n;
    return (ssize_t)n;
}

static void sample(struct lane *l, int64_t ns)
{
    if (l->samples == l->sample_room) {
        l->sample_room = l->sample_room ? 2 * l->sample_room : 4096;
        l->sample_us = realloc(l->sample_us, l->sample_room * sizeof *l->sample_us);
        if (!l->sample_us) usage("out of memory");
    }
    l->sample_us[l->samples++] = (uint32_t)(ns / 1000);
}

/* ---- connections ------------------------------------------------------------------------------------ */

static void hang_up(struct lane *l)
{
    if (l->ssl) {
        if (plan.resume) { /* TLS 1.3 tickets come after the handshake, so take it at the end */
            SSL_SESSION_free(l->session);
            l->session = SSL_get1_session(l->ssl);
        }
        SSL_shutdown(l->ssl);
        SSL_free(l->ssl);
        ERR_clear_error();
    }
    if (l->fd >= 0) close(l->fd);
    l->ssl = NULL, l->fd = -1, l->from = l->to = 0;
}

static bool tunnel(struct lane *l)
{
    char head[sizeof plan.proxy_headers + 1200], text[64];
    int n = snprintf(head, sizeof head, "CONNECT %s:%d HTTP/1.1\r\nHost: %s:%d\r\n%s\r\n", plan.host,
                     plan.port, plan.host, plan.port, plan.proxy_headers);
    if (!put(l, head, (size_t)n)) return fault(l, SENDING, "CONNECT");
    if (!read_head(l)) return false;
    if (l->status == 200) return true;
    l->seen[l->status]++;
    snprintf(text, sizeof text, "CONNECT was answered with %d", l->status);
    return fault(l, REFUSED, text);
}

static bool handshake(struct lane *l)
{
    l->ssl = SSL_new(tls_context);
    SSL_set_fd(l->ssl, l->fd);
    SSL_set_tlsext_host_name(l->ssl, plan.host);
    if (plan.ca_file) SSL_set1_host(l->ssl, plan.host);
    if (l->session) SSL_set_session(l->ssl, l->session);
    if (SSL_connect(l->ssl) != 1) {
        char text[200] = "the handshake ended or timed out";
        unsigned long code = ERR_get_error();
        if (code) ERR_error_string_n(code, text, sizeof text);
        return fault(l, HANDSHAKE, text);
    }
    if (SSL_session_reused(l->ssl) && clock_ns() >= window_open) l->resumed++;
    pthread_mutex_lock(&words_lock);
    if (!issuer[0]) {
        X509 *leaf = SSL_get1_peer_certificate(l->ssl);
        if (leaf) X509_NAME_oneline(X509_get_issuer_name(leaf), issuer, sizeof issuer);
        X509_free(leaf);
    }
    pthread_mutex_unlock(&words_lock);
    return true;
}

static bool dial(struct lane *l)
{
    struct timeval limit = {plan.timeout_s, 0};
    int on = 1;
    l->fd = socket(plan.peer.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (l->fd < 0) return fault(l, CONNECTING, strerror(errno));
    setsockopt(l->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(l->fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    setsockopt(l->fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    if (connect(l->fd, (struct sockaddr *)&plan.peer, plan.peer_size))
        return fault(l, CONNECTING, strerror(errno));
    if (clock_ns() >= window_open) l->connections++;
    if (plan.via == CONNECT && !tunnel(l)) return false;
    return !plan.tls || handshake(l);
}

/* ---- one request --------------------------------------------------------------------------------------- */

static size_t write_request(char *out, size_t room)
{
    char origin[300] = "", length[64] = "";
    if (plan.via == ABSOLUTE) snprintf(origin, sizeof origin, "http://%s:%d", plan.host, plan.port);
    if (plan.upload >= 0) snprintf(length, sizeof length, "Content-Length: %ld\r\n", plan.upload);
    return (size_t)snprintf(out, room, "%s %s%s HTTP/1.1\r\nHost: %s:%d\r\n%s%s%s\r\n",
                            plan.upload >= 0 ? "POST" : "GET", origin, plan.path, plan.host, plan.port,
                            length, plan.headers, plan.via == ABSOLUTE ? plan.proxy_headers : "");
}

static bool put_upload(struct lane *l)
{
    for (long left = plan.upload; left > 0; left -= ROOM)
        if (!put(l, upload_text, left < ROOM ? (size_t)left : ROOM)) return false;
    return true;
}

/* Reads the body and judges the answer. True: as the upstream would have sent it. */
static bool judge(struct lane *l, int64_t *bytes)
{
    char text[120], start[32];
    size_t kept = 0;
    const char *piece = NULL;
    ssize_t n;
    for (*bytes = 0; (n = next_piece(l, &piece)) > 0; *bytes += n)
        for (ssize_t i = 0; i < n && kept < sizeof start - 1; i++) start[kept++] = piece[i];
    start[kept] = '\0';
    l->seen[l->status]++;
    if (n < 0) return fault(l, RECEIVING, "the body ended or timed out before its end");
    if (l->status != plan.want_status) {
        snprintf(text, sizeof text, "%d in place of %d", l->status, plan.want_status);
        return fault(l, STATUS, text);
    }
    if (plan.want_length >= 0 && *bytes != plan.want_length) {
        snprintf(text, sizeof text, "a body of %lld bytes in place of %ld", (long long)*bytes, plan.want_length);
        return fault(l, LENGTH, text);
    }
    if (plan.want_length == -2 && atol(start) != plan.upload) {
        snprintf(text, sizeof text, "the upstream counted «%.20s», %ld were sent", start, plan.upload);
        return fault(l, LENGTH, text);
    }
    return true;
}

static bool ask(struct lane *l, const char *request, size_t size, int64_t since)
{
    bool sent = put(l, request, size) && (plan.upload < 0 || put_upload(l));
    int64_t bytes;
    /* A refusal may come before the upload has ended: its status says more than «send failed». */
    if (!sent && plan.upload < 0) return fault(l, SENDING, "request");
    if (!read_head(l) || !judge(l, &bytes)) return false;
    if (!sent) return fault(l, SENDING, "upload");
    int64_t until = clock_ns();
    if (counts(since, until)) {
        sample(l, until - since);
        l->done++, l->down += bytes, l->up += plan.upload > 0 ? plan.upload : 0;
    }
    return true;
}

/* --events: reads «data: NS» lines as they come; each is one sample. */
static bool listen_to_events(struct lane *l, const char *request, size_t size)
{
    char line[64];
    size_t used = 0;
    const char *piece = NULL;
    ssize_t n;
    if (!put(l, request, size)) return fault(l, SENDING, "request");
    if (!read_head(l)) return false;
    l->seen[l->status]++;
    if (l->status != plan.want_status) return fault(l, STATUS, "no stream of events");
    while ((n = next_piece(l, &piece)) > 0) {
        int64_t now = clock_ns(), sent;
        for (ssize_t i = 0; i < n; i++) {
            if (piece[i] != '\n') {
                if (used < sizeof line - 1) line[used++] = piece[i];
                continue;
            }
            line[used] = '\0', used = 0;
            if (sscanf(line, "data: %ld", &sent) != 1) continue;
            if (counts(sent, now)) sample(l, now - sent), l->done++;
        }
        l->down += n;
    }
    return n == 0 || fault(l, RECEIVING, "the stream of events was cut");
}

static bool another(void)
{
    if (plan.requests) return atomic_fetch_add(&tickets, 1) < plan.requests;
    return clock_ns() < window_close;
}

static void *run_lane(void *argument)
{
    struct lane *l = argument;
    char request[16 * 1024];
    size_t size = write_request(request, sizeof request);
    while (another()) {
        int64_t since = clock_ns(); /* includes the connection only where each request opens one */
        bool good = l->fd >= 0 || dial(l);
        if (!plan.fresh) since = clock_ns();
        good = good && (plan.events ? listen_to_events(l, request, size) : ask(l, request, size, since));
        if (!good || l->ends || plan.fresh) hang_up(l);
        if (!good) usleep(2000); /* a refusing proxy is no reason to spin */
    }
    hang_up(l);
    return NULL;
}

/* ---- CPU of the watched processes --------------------------------------------------------------------- */

/* User and system seconds, with those of children already reaped. */
static double cpu_seconds(void)
{
    unsigned long total = 0;
    for (int i = 0; i < plan.pid_count; i++) {
        char path[40], stat[1024] = "";
        unsigned long user, system, of_children[2];
        snprintf(path, sizeof path, "/proc/%d/stat", plan.pids[i]);
        FILE *file = fopen(path, "r");
        if (!file) continue;
        char *after = fgets(stat, sizeof stat, file) ? strrchr(stat, ')') : NULL;
        if (after && sscanf(after + 2, "%*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %lu %lu %lu %lu", &user,
                            &system, &of_children[0], &of_children[1]) == 4)
            total += user + system + of_children[0] + of_children[1];
        fclose(file);
    }
    return (double)total / (double)sysconf(_SC_CLK_TCK);
}

/* ---- the result ------------------------------------------------------------------------------------------- */

static int ascending(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

static void print_text(const char *name, const char *text)
{
    printf(",\"%s\":\"", name);
    for (; *text; text++) putchar(*text == '"' || *text == '\\' || (unsigned char)*text < 32 ? '?' : *text);
    putchar('"');
}

static void print_counts(const char *name, const long *count, int size, const char *const *names)
{
    const char *comma = "";
    printf(",\"%s\":{", name);
    for (int i = 0; i < size; i++) {
        if (!count[i]) continue;
        if (names) printf("%s\"%s\":%ld", comma, names[i], count[i]);
        else printf("%s\"%d\":%ld", comma, i, count[i]);
        comma = ",";
    }
    putchar('}');
}

/* Prints the sum of all lanes; returns the exit status. */
static int report(struct lane *lanes, double seconds, double cpu)
{
    static struct lane sum;
    for (int i = 0; i < plan.lanes; i++) sum.samples += lanes[i].samples;
    uint32_t *all = malloc((sum.samples + 1) * sizeof *all);
    if (!all) usage("out of memory");
    size_t n = 0;
    for (int i = 0; i < plan.lanes; i++) {
        struct lane *l = &lanes[i];
        sum.done += l->done, sum.errors += l->errors, sum.early_errors += l->early_errors;
        sum.connections += l->connections, sum.resumed += l->resumed, sum.down += l->down, sum.up += l->up;
        for (int k = 0; k < FAULTS; k++) sum.fault[k] += l->fault[k];
        for (int s = 0; s < 600; s++) sum.seen[s] += l->seen[s];
        if (l->samples) memcpy(all + n, l->sample_us, l->samples * sizeof *all);
        n += l->samples;
    }
    qsort(all, n, sizeof *all, ascending);
#define MS_AT(q) (n ? all[(size_t)((double)(n - 1) * (q))] / 1e3 : 0.0)
    printf("{\"via\":\"%s\",\"tls\":%s,\"fresh\":%s,\"lanes\":%d,\"seconds\":%.3f", VIA[plan.via],
           plan.tls ? "true" : "false", plan.fresh ? "true" : "false", plan.lanes, seconds);
    printf(",\"requests\":%ld,\"errors\":%ld,\"early_errors\":%ld,\"per_second\":%.1f", sum.done, sum.errors,
           sum.early_errors, (double)sum.done / seconds);
    printf(",\"ms\":{\"p50\":%.3f,\"p90\":%.3f,\"p99\":%.3f,\"max\":%.3f}", MS_AT(.5), MS_AT(.9), MS_AT(.99),
           MS_AT(1));
    printf(",\"connections\":%ld,\"resumed\":%ld,\"bytes_down\":%lld,\"bytes_up\":%lld", sum.connections,
           sum.resumed, (long long)sum.down, (long long)sum.up);
    if (plan.pid_count)
        printf(",\"cpu_seconds\":%.2f,\"cpu_us\":%.1f", cpu, sum.done ? cpu * 1e6 / (double)sum.done : 0.0);
    print_counts("status", sum.seen, 600, NULL);
    print_counts("faults", sum.fault, FAULTS, FAULT);
    print_text("first_fault", first_fault);
    print_text("issuer", issuer);
    puts("}");
    free(all);
    return sum.done > 0 && sum.errors == 0 ? 0 : 1;
}

/* ---- options --------------------------------------------------------------------------------------------------- */

static const char HELP[] =
    "usage: load --target HOST:PORT [options]\n"
    "  --target HOST:PORT    whom to ask (the name goes into Host and SNI)\n"
    "  --at HOST:PORT        where TCP goes instead: the target's address, or the proxy\n"
    "  --via none|absolute|connect   how (default none); the other two need --at\n"
    "  --tls                 TLS with the target (inside CONNECT, or straight)\n"
    "  --ca FILE             verify the certificate (default: no; see «issuer» in the result)\n"
    "  --resume              offer TLS session resumption\n"
    "  --header LINE         for the target; repeatable      --proxy-header LINE   for the proxy\n"
    "  --path PATH           default /\n"
    "  --upload N            POST N bytes; without --length the answer must be the number N\n"
    "  --events              the answer is a stream of stamped events; a sample is one delay\n"
    "  --status N            wanted status (default 200)\n"
    "  --length N|any        wanted body length; required for GET\n"
    "  --lanes N             connections at once, one thread each (default 16)\n"
    "  --fresh               a new connection for each request (default: kept alive)\n"
    "  --duration S  --warmup S   seconds counted, and uncounted before (default 3 and 0.5)\n"
    "  --requests N          stop after N in all; no warm-up, all count\n"
    "  --timeout S           of every read and write (default 10)\n"
    "  --watch PID[,PID…]    report the CPU time of these processes\n"
    "Exit: 0 something was counted and nothing failed, 1 otherwise, 2 bad usage.\n";

/* Splits HOST:PORT; IPv6 in brackets. */
static int split(const char *text, char *host, size_t room)
{
    const char *colon = strrchr(text, ':');
    int port = colon ? atoi(colon + 1) : 0;
    size_t n = colon ? (size_t)(colon - text) : 0;
    if (n == 0 || n >= room || port < 1 || port > 65535) usage("not HOST:PORT");
    if (text[0] == '[') text++, n -= 2;
    snprintf(host, room, "%.*s", (int)n, text);
    return port;
}

/* Looked up once, before the clock runs: name service is no part of the measurement. */
static void find_peer(const char *host, int port)
{
    char service[8];
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found;
    snprintf(service, sizeof service, "%d", port);
    int code = getaddrinfo(host, service, &hints, &found);
    if (code) usage(gai_strerror(code));
    memcpy(&plan.peer, found->ai_addr, plan.peer_size = found->ai_addrlen);
    freeaddrinfo(found);
}

static void add_line(char *list, size_t room, const char *line)
{
    size_t used = strlen(list);
    if (!strchr(line, ':') || strpbrk(line, "\r\n") || used + strlen(line) + 3 > room)
        usage("a header is «Name: value»");
    sprintf(list + used, "%s\r\n", line);
}

static void read_options(int argc, char **argv)
{
    enum { TARGET = 1, AT, VIA_, TLS, CA, RESUME, HEADER, PROXY_HEADER, PATH, UPLOAD, EVENTS, STATUS_,
           LENGTH_, LANES, FRESH, DURATION, WARMUP, REQUESTS, TIMEOUT, WATCH, HELP_ };
    static const struct option known[] = {
        {"target", 1, 0, TARGET},     {"at", 1, 0, AT},             {"via", 1, 0, VIA_},
        {"tls", 0, 0, TLS},           {"ca", 1, 0, CA},             {"resume", 0, 0, RESUME},
        {"header", 1, 0, HEADER},     {"proxy-header", 1, 0, PROXY_HEADER}, {"path", 1, 0, PATH},
        {"upload", 1, 0, UPLOAD},     {"events", 0, 0, EVENTS},     {"status", 1, 0, STATUS_},
        {"length", 1, 0, LENGTH_},    {"lanes", 1, 0, LANES},       {"fresh", 0, 0, FRESH},
        {"duration", 1, 0, DURATION}, {"warmup", 1, 0, WARMUP},     {"requests", 1, 0, REQUESTS},
        {"timeout", 1, 0, TIMEOUT},   {"watch", 1, 0, WATCH},       {"help", 0, 0, HELP_}, {0, 0, 0, 0}};
    char at[256] = "";
    int option, at_port = 0;
    while ((option = getopt_long(argc, argv, "", known, NULL)) != -1) switch (option) {
        case TARGET: plan.port = split(optarg, plan.host, sizeof plan.host); break;
        case AT: at_port = split(optarg, at, sizeof at); break;
        case VIA_:
            for (plan.via = NONE; plan.via <= CONNECT && strcmp(optarg, VIA[plan.via]);) plan.via++;
            if (plan.via > CONNECT) usage("--via is none, absolute or connect");
            break;
        case TLS: plan.tls = true; break;
        case CA: plan.ca_file = optarg; break;
        case RESUME: plan.resume = true; break;
        case HEADER: add_line(plan.headers, sizeof plan.headers, optarg); break;
        case PROXY_HEADER: add_line(plan.proxy_headers, sizeof plan.proxy_headers, optarg); break;
        case PATH: plan.path = optarg; break;
        case UPLOAD: plan.upload = atol(optarg); break;
        case EVENTS: plan.events = true, plan.want_length = -1; break;
        case STATUS_: plan.want_status = atoi(optarg); break;
        case LENGTH_: plan.want_length = strcmp(optarg, "any") ? atol(optarg) : -1; break;
        case LANES: plan.lanes = atoi(optarg); break;
        case FRESH: plan.fresh = true; break;
        case DURATION: plan.duration_s = atof(optarg); break;
        case WARMUP: plan.warmup_s = atof(optarg); break;
        case REQUESTS: plan.requests = atol(optarg); break;
        case TIMEOUT: plan.timeout_s = atoi(optarg); break;
        case WATCH:
            for (char *pid = strtok(optarg, ","); pid; pid = strtok(NULL, ",")) {
                if (plan.pid_count == MAX_PIDS) usage("too many processes to watch");
                plan.pids[plan.pid_count++] = atoi(pid);
            }
            break;
        case HELP_: fputs(HELP, stdout); exit(0);
        default: exit(2);
    }
    if (optind != argc || !plan.host[0]) usage("--target is required, and nothing else without a name");
    if (plan.via != NONE && !at_port) usage("this --via needs --at");
    if (plan.via == ABSOLUTE && plan.tls) usage("--tls goes with none or connect");
    if (plan.want_length == -2 && plan.upload < 0) usage("--length is required, or an error page could pass");
    if (plan.lanes < 1 || plan.lanes > MAX_LANES || plan.timeout_s < 1) usage("--lanes or --timeout");
    if (plan.path[0] != '/' || strlen(plan.path) > 1000) usage("--path begins with /");
    if (plan.duration_s <= 0 || plan.warmup_s < 0) usage("times are positive");
    find_peer(at_port ? at : plan.host, at_port ? at_port : plan.port);
}

static void prepare_tls(void)
{
    tls_context = SSL_CTX_new(TLS_client_method());
    SSL_CTX_set_session_cache_mode(tls_context, SSL_SESS_CACHE_CLIENT);
    SSL_CTX_set_verify(tls_context, plan.ca_file ? SSL_VERIFY_PEER : SSL_VERIFY_NONE, NULL);
    if (plan.ca_file && !SSL_CTX_load_verify_locations(tls_context, plan.ca_file, NULL)) usage("--ca: unreadable");
}

static void sleep_until(int64_t ns)
{
    struct timespec t = {ns / 1000000000, ns % 1000000000};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) == EINTR) {}
}

int main(int argc, char **argv)
{
    read_options(argc, argv);
    signal(SIGPIPE, SIG_IGN);
    prepare_tls();
    for (size_t i = 0; i < ROOM; i++) upload_text[i] = i % 64 == 63 ? '\n' : (char)('a' + i % 26);
    struct lane *lanes = calloc((size_t)plan.lanes, sizeof *lanes);
    if (!lanes) usage("out of memory");

    double cpu = cpu_seconds();
    window_open = clock_ns() + (plan.requests ? 0 : (int64_t)(plan.warmup_s * 1e9));
    window_close = plan.requests ? INT64_MAX : window_open + (int64_t)(plan.duration_s * 1e9);
    for (int i = 0; i < plan.lanes; i++) {
        lanes[i].fd = -1;
        if (pthread_create(&lanes[i].thread, NULL, run_lane, &lanes[i])) usage("no more threads");
    }
    if (!plan.requests) {
        sleep_until(window_open);
        cpu = cpu_seconds();
        sleep_until(window_close);
        cpu = cpu_seconds() - cpu;
    }
    for (int i = 0; i < plan.lanes; i++) pthread_join(lanes[i].thread, NULL);
    if (plan.requests) {
        window_close = clock_ns();
        cpu = cpu_seconds() - cpu;
    }
    return report(lanes, (double)(window_close - window_open) / 1e9, cpu);
}
