"""The test world: real servers, a real gate, real clients; small factories without hidden state.

| module        | what it gives                                                             |
|---------------|---------------------------------------------------------------------------|
| `dns`         | a scripted DNS server, UDP and TCP, that counts what it was asked         |
| `certs`       | a certificate authority of its own for the servers                        |
| `upstream`    | an HTTP/1.1, HTTP/2 and WebSocket server, scripted per path, byte-exact   |
| `gate`        | a `tidegate up` in a state folder of its own, its sessions and its log    |
| `client`      | raw clients through CONNECT, for input that no library would send         |
| `world`       | an internet of network namespaces (root)                                  |
| `gitserver`   | git over https                                                            |
| `demo`        | `make demo`                                                               |
"""
