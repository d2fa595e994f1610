"""Names that lint knows: hosts shared by many tenants, tunnel services, DNS-over-HTTPS. Data only."""

__all__ = ["DOH_HOSTS", "MULTI_TENANT_SUFFIXES", "TUNNEL_SUFFIXES"]

# Last reviewed on 2026-11-29.

# fmt: off
MULTI_TENANT_SUFFIXES = frozenset({
    # object stores and CDNs: a bucket of the attacker's own is one request away
    "s3.amazonaws.com", "amazonaws.com", "cloudfront.net", "elasticbeanstalk.com", "awsapprunner.com",
    "on.aws", "amplifyapp.com", "execute-api.us-east-1.amazonaws.com",
    "blob.core.windows.net", "file.core.windows.net", "queue.core.windows.net", "table.core.windows.net",
    "dfs.core.windows.net", "web.core.windows.net", "core.windows.net", "windows.net", "azureedge.net",
    "azurefd.net", "azurewebsites.net", "azurecontainerapps.io", "azurestaticapps.net", "azure-api.net",
    "cloudapp.azure.com", "cloudapp.net", "trafficmanager.net", "servicebus.windows.net", "vault.azure.net",
    "openai.azure.com", "documents.azure.com", "database.windows.net",
    "googleapis.com", "storage.googleapis.com", "googleusercontent.com", "appspot.com", "run.app",
    "cloudfunctions.net", "web.app", "firebaseapp.com", "firebaseio.com", "firebasestorage.app",
    "digitaloceanspaces.com", "ondigitalocean.app", "backblazeb2.com", "wasabisys.com", "linodeobjects.com",
    "r2.cloudflarestorage.com", "r2.dev", "cloudflarestorage.com", "b-cdn.net", "fastly.net", "akamaized.net",
    "oraclecloud.com", "aliyuncs.com", "myqcloud.com", "scw.cloud", "supabase.co", "supabase.in",
    # pages, functions and previews
    "github.io", "githubusercontent.com", "githubpreview.dev", "app.github.dev", "gitlab.io", "bitbucket.io",
    "codeberg.page", "pages.dev", "workers.dev", "netlify.app", "vercel.app", "now.sh", "herokuapp.com",
    "onrender.com", "render.com", "fly.dev", "railway.app", "up.railway.app", "deno.dev", "deno.net", "surge.sh",
    "glitch.me", "repl.co", "replit.app", "replit.dev", "stackblitz.io", "webcontainer.io", "codesandbox.io",
    "csb.app", "gitpod.io", "lovable.app", "hf.space", "huggingface.co", "streamlit.app", "modal.run",
    "wixsite.com", "wordpress.com", "blogspot.com", "tumblr.com", "weebly.com", "webflow.io", "notion.site",
    "myshopify.com", "zendesk.com", "atlassian.net", "slack.com", "sharepoint.com", "salesforce.com",
    "force.com", "service-now.com", "okta.com", "auth0.com", "webhook.site", "pipedream.net", "hookdeck.com",
    "requestbin.net", "oast.fun", "oast.pro", "oast.me", "oast.site", "oast.online", "interact.sh",
    "burpcollaborator.net", "oastify.com", "duckdns.org", "no-ip.org", "ddns.net", "dyndns.org", "hopto.org",
})
"""Suffixes below which anyone can have a name."""

TUNNEL_SUFFIXES = frozenset({
    "ngrok.io", "ngrok.com", "ngrok.app", "ngrok.dev", "ngrok-free.app", "ngrok-free.dev", "ngrok-agent.com",
    "trycloudflare.com", "cfargotunnel.com", "argotunnel.com", "localtunnel.me", "loca.lt", "serveo.net",
    "serveousercontent.com", "localhost.run", "lhr.life", "lhr.rocks", "pinggy.io", "pinggy.link", "pinggy.online",
    "bore.pub", "tunnelto.dev", "telebit.io", "telebit.cloud", "pagekite.me", "packetriot.net", "packetriot.com",
    "localxpose.io", "loclx.io", "playit.gg", "zrok.io", "devtunnels.ms", "tunnels.api.visualstudio.com",
    "expose.dev", "sharedwithexpose.com", "beeceptor.com", "portmap.io", "portmap.host", "inlets.dev", "sish.top",
    "tailscale.com", "tailscale.io", "ts.net", "zerotier.com", "remote.it", "holesail.io", "tuns.sh",
    "tunnelmole.net", "staqlab.com", "webhookrelay.com", "hamachi.cc", "openport.io", "tmate.io", "uptermd.upterm.dev",
})
"""Services that carry other people's connections: an allowed tunnel is an allowed everything (P-25)."""

DOH_HOSTS = frozenset({
    "dns.google", "dns.google.com", "8888.google", "dns64.dns.google", "cloudflare-dns.com", "one.one.one.one",
    "1dot1dot1dot1.cloudflare-dns.com", "mozilla.cloudflare-dns.com", "chrome.cloudflare-dns.com",
    "security.cloudflare-dns.com", "family.cloudflare-dns.com", "cloudflare-gateway.com", "dns.quad9.net",
    "dns9.quad9.net", "dns10.quad9.net", "dns11.quad9.net", "doh.opendns.com", "doh.familyshield.opendns.com",
    "doh.umbrella.com", "dns.nextdns.io", "anycast.dns.nextdns.io", "dns.adguard.com", "dns.adguard-dns.com",
    "unfiltered.adguard-dns.com", "doh.cleanbrowsing.org", "doh.mullvad.net", "dns.mullvad.net", "doh.dns.sb",
    "dns.sb", "doh.libredns.gr", "doh.applied-privacy.net", "dns.alidns.com", "doh.pub", "dns.pub", "doh.360.cn",
    "dns0.eu", "freedns.controld.com", "dns.controld.com", "doh.xfinity.com", "ordns.he.net", "dns.twnic.tw",
    "doh.ffmuc.net", "dns.digitale-gesellschaft.ch", "doq.dns.nextdns.io", "odoh.cloudflare-dns.com",
})
"""Resolvers over HTTPS: names looked up there escape the gate's own view of them."""
# fmt: on
