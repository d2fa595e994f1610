// Node through the gate, with nothing installed: a CONNECT, and https inside it.
//   tidegate exec --credential partner -- node docs/recipes/node_get.mjs https://api.partner.test:8443/me
// Node reads NODE_EXTRA_CA_CERTS, which the session's environment sets, but before version 24 no proxy variable.
// From there on NODE_USE_ENV_PROXY=1, which is set too, lets `fetch` find the proxy by itself.
import http from "node:http";
import https from "node:https";

const url = new URL(process.argv[2]);
const proxy = new URL(process.env.HTTPS_PROXY);
const authority = `${url.hostname}:${url.port || 443}`;
const user = `${decodeURIComponent(proxy.username)}:${decodeURIComponent(proxy.password)}`;

const connect = http.request({
  host: proxy.hostname,
  port: proxy.port,
  method: "CONNECT",
  path: authority,
  headers: { host: authority, "proxy-authorization": `Basic ${Buffer.from(user).toString("base64")}` },
});
connect.on("connect", (answer, socket) => {
  if (answer.statusCode !== 200) {
    console.error(`denied at CONNECT: ${answer.statusCode} ${answer.headers["proxy-status"] ?? ""}`);
    process.exit(1);
  }
  const headers = { authorization: `Bearer ${process.env.PARTNER_KEY}` };
  https.get(url, { socket, agent: false, headers }, (reply) => {
    process.exitCode = reply.statusCode === 200 ? 0 : 1;
    reply.pipe(process.stdout);
  });
});
connect.end();
