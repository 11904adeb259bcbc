// node trace_processor.mjs ENGINE_DIRECTORY TRACE SQL...
// Loads TRACE into Perfetto's trace processor (WebAssembly) and prints one line of JSON per query: its rows as
// arrays. 64-bit integers are printed as text. ENGINE_DIRECTORY holds the engine of the package named in
// consumers.py, made for a browser worker; the substitutions below let it run in node with its files on disk,
// and stop with an error when another version of the package no longer has the lines they look for.
import { readFileSync } from "node:fs";
import path from "node:path";
import { pathToFileURL } from "node:url";
import vm from "node:vm";

const [directory, trace, ...queries] = process.argv.slice(2);
const home = `${pathToFileURL(path.resolve(directory)).href}/`;
const CHUNK_BYTES = 32 * 2 ** 20;

function define(name, value) {
  Object.defineProperty(globalThis, name, { value, configurable: true, writable: true });
}

function replaceOnce(source, before, after) {
  if (source.split(before).length !== 2) throw new Error(`engine has changed: expected once: ${before}`);
  return source.replace(before, () => after);
}

function loadBridge() {
  define("self", globalThis);
  define("WorkerGlobalScope", function WorkerGlobalScope() {});
  define("location", { href: home });
  define("stagescopeWasm", new Uint8Array(readFileSync(path.join(directory, "trace_processor.wasm"))));
  let source = readFileSync(path.join(directory, "engine_bundle.node.js"), "utf8");
  // 32-bit memory: node 20 has no 64-bit WebAssembly memory.
  source = replaceOnce(source, "this.useMemory64 = hasMemory64Support();", "this.useMemory64 = false;");
  source = replaceOnce(source, "locateFile: (s) => s,", "locateFile: (s) => s, wasmBinary: stagescopeWasm,");
  const making = "const wasmBridge = new wasm_bridge_1.WasmBridge();";
  source = replaceOnce(source, making, `${making} globalThis.stagescopeBridge = wasmBridge;`);
  vm.runInThisContext(source, { filename: "engine_bundle.node.js" });
  return globalThis.stagescopeBridge;
}

async function connect() {
  const { EngineBase } = await import(new URL("engine.mjs", home).href);
  const { port1, port2 } = new MessageChannel();
  class Engine extends EngineBase {
    mode = "WASM";
    id = "test";
    constructor() {
      super();
      port2.onmessage = ({ data }) => data instanceof Uint8Array && this.onRpcResponseBytes(data);
    }
    rpcSendRequestBytes(bytes) {
      port2.postMessage(bytes);
    }
  }
  loadBridge().initialize(port1);
  return new Engine();
}

function plain(value) {
  if (typeof value === "bigint") return String(value);
  return value instanceof Uint8Array ? null : value;
}

const engine = await connect();
const bytes = readFileSync(trace);
for (let start = 0; start < bytes.length; start += CHUNK_BYTES) {
  await engine.parse(new Uint8Array(bytes.subarray(start, start + CHUNK_BYTES)));
}
await engine.notifyEof();
const lines = [];
for (const sql of queries) {
  const result = await engine.query(sql);
  const columns = result.columns();
  const rows = [];
  for (const row = result.iter({}); row.valid(); row.next()) rows.push(columns.map((name) => plain(row.get(name))));
  lines.push(JSON.stringify(rows));
}
process.stdout.write(`${lines.join("\n")}\n`, () => process.exit(0));
