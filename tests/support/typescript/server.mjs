// Serves one tool over HTTP with the official TypeScript SDK 1.x, which shakes hands and gives each client a session.
//
// node server.mjs ROOT PORT: ROOT is the folder in which the SDK is installed. It listens on loopback.
import { randomUUID } from "node:crypto";
import { createServer } from "node:http";
import { createRequire } from "node:module";

const load = createRequire(`${process.argv[2]}/package.json`);
const { McpServer } = load("@modelcontextprotocol/sdk/server/mcp.js");
const { StreamableHTTPServerTransport } = load("@modelcontextprotocol/sdk/server/streamableHttp.js");
const sessions = new Map();

async function newTransport() {
  const server = new McpServer({ name: "everything", version: "1.2.3" });
  server.registerTool("hello", { description: "Says hello." }, () => ({ content: [{ type: "text", text: "hello" }] }));
  const transport = new StreamableHTTPServerTransport({
    sessionIdGenerator: randomUUID,
    onsessioninitialized: (id) => sessions.set(id, transport),
    onsessionclosed: (id) => sessions.delete(id),
  });
  await server.connect(transport);
  return transport;
}

const http = createServer(async (request, response) => {
  if (request.url === "/sessions") {
    response.end(String(sessions.size));
    return;
  }
  const known = sessions.get(request.headers["mcp-session-id"]);
  await (known ?? (await newTransport())).handleRequest(request, response);
});
http.listen(Number(process.argv[3]), "127.0.0.1");
