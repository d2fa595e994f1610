/*
 * events: an https server whose every answer is a stream of server-sent events, each holding the
 * CLOCK_MONOTONIC of the moment before it was written: «data: NS». load --events subtracts.
 *
 *     events PORT CERT KEY COUNT INTERVAL_US      on 127.0.0.1, until a signal
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <openssl/ssl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static SSL_CTX *context;
static long count, interval_us;

static const char HEAD[] = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nCache-Control: no-store\r\n"
                           "Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n";

/* Reads up to the empty line that ends the request's head. */
static int read_request(SSL *ssl)
{
    char head[16 * 1024];
    for (int used = 0, n; used < (int)sizeof head - 1; used += n) {
        if ((n = SSL_read(ssl, head + used, (int)sizeof head - 1 - used)) <= 0) return 0;
        head[used + n] = '\0';
        if (strstr(head, "\r\n\r\n")) return 1;
    }
    return 0;
}

static void *answer(void *argument)
{
    int fd = (int)(long)argument;
    SSL *ssl = SSL_new(context);
    SSL_set_fd(ssl, fd);
    if (SSL_accept(ssl) == 1 && read_request(ssl) && SSL_write(ssl, HEAD, sizeof HEAD - 1) > 0) {
        for (long i = 0; i < count; i++) {
            char event[64], chunk[96];
            struct timespec now;
            usleep((useconds_t)interval_us);
            clock_gettime(CLOCK_MONOTONIC, &now);
            int size = snprintf(event, sizeof event, "data: %ld\n\n", now.tv_sec * 1000000000 + now.tv_nsec);
            int all = snprintf(chunk, sizeof chunk, "%x\r\n%s\r\n", size, event);
            if (SSL_write(ssl, chunk, all) <= 0) break;
        }
        SSL_write(ssl, "0\r\n\r\n", 5);
        SSL_shutdown(ssl);
    }
    SSL_free(ssl);
    close(fd);
    return NULL;
}

int main(int argc, char **argv)
{
    if (argc != 6) return fputs("usage: events PORT CERT KEY COUNT INTERVAL_US\n", stderr), 2;
    struct sockaddr_in here = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(argv[1])),
                               .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int on = 1, listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    count = atol(argv[4]), interval_us = atol(argv[5]);
    signal(SIGPIPE, SIG_IGN);
    context = SSL_CTX_new(TLS_server_method());
    if (SSL_CTX_use_certificate_chain_file(context, argv[2]) != 1 ||
        SSL_CTX_use_PrivateKey_file(context, argv[3], SSL_FILETYPE_PEM) != 1)
        return fputs("events: certificate or key unreadable\n", stderr), 2;
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(listener, (struct sockaddr *)&here, sizeof here) || listen(listener, 64)) return perror("events"), 1;
    for (;;) {
        pthread_t thread;
        int fd = accept(listener, NULL, NULL);
        if (fd < 0) continue;
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        if (pthread_create(&thread, NULL, answer, (void *)(long)fd)) close(fd);
        else pthread_detach(thread);
    }
}
