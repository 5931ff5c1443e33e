// Preload: makes every server of this process listen on 127.0.0.1.
//
// `@modelcontextprotocol/server-everything` listens on all interfaces and has no option for that.
const { Server } = require("node:net");
const { listen } = Server.prototype;

Server.prototype.listen = function listenOnLoopback(port, ...others) {
  return listen.call(this, { port: Number(port), host: "127.0.0.1" }, ...others);
};
