// Serves one tool over HTTP with the official TypeScript SDK 2.x, which speaks 2026-07-28.
//
// node stateless_server.mjs ROOT PORT: ROOT is the folder in which the SDK is installed. It listens on loopback.
import { createServer } from "node:http";
import { createRequire } from "node:module";

const load = createRequire(`${process.argv[2]}/package.json`);
const { McpServer, createMcpHandler } = load("@modelcontextprotocol/server");

function newServer() {
  const server = new McpServer({ name: "stateless", version: "2.0.0" });
  const settings = { description: "Says hello.", annotations: { readOnlyHint: true } };
  server.registerTool("hello", settings, () => ({ content: [{ type: "text", text: "hello" }] }));
  return server;
}

const handler = createMcpHandler(newServer);
const http = createServer(async (request, response) => {
  const parts = [];
  for await (const part of request) parts.push(part);
  const { method, headers } = request;
  const body = parts.length ? Buffer.concat(parts) : undefined;
  const url = `http://${headers.host}${request.url}`;
  const answer = await handler.fetch(new Request(url, { method, headers, body }));
  response.writeHead(answer.status, Object.fromEntries(answer.headers));
  response.end(Buffer.from(await answer.arrayBuffer()));
});
http.listen(Number(process.argv[3]), "127.0.0.1");
