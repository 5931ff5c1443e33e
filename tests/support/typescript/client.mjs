// Calls the tools of an MCP server with an official TypeScript SDK, and writes down what it got.
//
// node client.mjs PLAN ROOT: PLAN is a JSON file with the members of `official_clients.Plan`; ROOT is the folder
// in which the SDKs are installed.
import { readFileSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";

const plan = JSON.parse(readFileSync(process.argv[2], "utf8"));
const load = createRequire(`${process.argv[3]}/package.json`);
const SDKS = {
  "sdk-1": () => ({
    ...load("@modelcontextprotocol/sdk/client/index.js"),
    ...load("@modelcontextprotocol/sdk/client/streamableHttp.js"),
    ...load("@modelcontextprotocol/sdk/client/stdio.js"),
  }),
  "client-2": () => ({
    ...load("@modelcontextprotocol/client"),
    ...load("@modelcontextprotocol/client/stdio"),
  }),
};
const { Client, StdioClientTransport, StreamableHTTPClientTransport } = SDKS[plan.sdk]();

function transport() {
  if (plan.command.length) {
    return new StdioClientTransport({
      command: plan.command[0],
      args: plan.command.slice(1),
      env: plan.environment,
      stderr: "ignore",
    });
  }
  const url = plan.url ?? process.env.LIFESIGN_PROXY_URL;
  const token = plan.token ?? process.env.LIFESIGN_RUN_TOKEN;
  const headers = { Authorization: `Bearer ${token}` };
  return new StreamableHTTPClientTransport(new URL(url), { requestInit: { headers } });
}

async function answerTo(client, { name, arguments: given }) {
  try {
    const result = await client.callTool({ name, arguments: given });
    return {
      is_error: result.isError ?? false,
      text: result.content.map((part) => part.text).join("\n"),
      meta: result._meta ?? {},
      structured: result.structuredContent ?? null,
    };
  } catch (error) {
    return { raised: String(error), code: error.code };
  }
}

const client = new Client({ name: "test", version: "1" }, { versionNegotiation: { mode: plan.mode } });
await client.connect(transport());
const { tools } = await client.listTools();
const answers = [];
for (const call of plan.calls) answers.push(await answerTo(client, call));
await client.close();
writeFileSync(plan.to, JSON.stringify({ tools: tools.map((tool) => tool.name), answers }));
