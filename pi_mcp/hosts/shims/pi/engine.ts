/**
 * The Node side of `pi-mcp engine`: one process, the JSON-RPC 2.0 lines between it and a host, one conversation.
 *
 * Comes in: the folder of the shim, what the host can show, and what its model and person ask for. Goes out: answers,
 * the tools that are loaded, or an EngineError with one clear message. It knows no host, never prints, and starts
 * nothing by being loaded; Node's own modules only. docs/engine.md describes the protocol.
 */

import { type ChildProcess, spawn } from "node:child_process";
import { readFileSync, realpathSync } from "node:fs";
import { dirname, join } from "node:path";

/** Characters of one line to the engine, which ends at a longer one (16 MiB), and of one from it. */
const LONGEST_SENT = 5 * 1024 * 1024;
const LONGEST_READ = 256 * 1024 * 1024;
/** Milliseconds that the engine's start may take, and any other request: calls end after ten minutes by themselves. */
const START = 30_000;
const REQUEST = 1_800_000;
const COMPLETE = 500;
/** An engine that says nothing for so many milliseconds is asked for a sign of life; after so many in a row it is ended. */
const [PING, PINGS] = [10_000, 5];
const again = (host: string) => `The next mcp_search starts it again. If it stays away, run \`pi-mcp install ${host}\`.`;
const UNKNOWN = "Whether the call took effect is unknown: check before calling again.";

export interface Diagnostic {
	code: string;
	operation: string;
	server?: string | null;
	message: string;
	hint?: string | null;
}

/** A failure as the engine told it, or the engine's own; its message is one line for the model or the person. */
export class EngineError extends Error {
	constructor(readonly diagnostic: Diagnostic) {
		const { code, server, message, hint } = diagnostic;
		super(`${server ? `${server}: ` : ""}[${code}] ${message}${hint ? ` ${hint}` : ""}`);
	}
}

export function trouble(message: string, hint: string, operation = "connect", code = "connection_failed"): EngineError {
	return new EngineError({ code, operation, server: null, message, hint });
}

export function asError(error: unknown): EngineError {
	if (error instanceof EngineError) return error;
	return trouble("Something failed in the host's pi-mcp extension.", "Start the host anew.", "command", "operation_failed");
}

/** A tool to declare to the model; JSON Schema with an object at the top. */
export interface Tool {
	name: string;
	description: string;
	inputSchema: Record<string, unknown>;
	annotations?: Record<string, unknown>;
}

export interface Progress {
	text: string;
	done?: number;
	total?: number;
}

export function line({ text, done, total }: Progress): string {
	const amount = typeof done !== "number" ? "" : typeof total === "number" ? ` (${done}/${total})` : ` (${done})`;
	return `${text}${amount}`;
}

/** A result of the engine. `tools` is all that is loaded now; `details` is to be kept with a tool result. */
export interface Reply {
	tools?: Tool[];
	details?: { loaded?: any[]; diagnostics?: Diagnostic[]; files?: string[] };
	[member: string]: any;
}

export interface Options {
	signal?: AbortSignal;
	progress?: (progress: Progress) => void;
	/** Milliseconds. */
	limit?: number;
}

export interface Host {
	/** The members of `initialize` that speak of the host. */
	about(): object;
	/** The loaded tools are these now, after an answer or by themselves; `search` is the search tool of a new engine. */
	changed(tools: Tool[], search?: Tool): void;
	/** A question to the person; `signal` aborts when it is withdrawn. */
	question(method: string, params: any, signal: AbortSignal): Promise<object>;
	notify(level: string, text: string): void;
}

/** The version of the program that runs, if it is of an npm package of this name; "" otherwise. */
export function versionOf(name: string): string {
	try {
		for (let path = realpathSync(process.argv[1]); path !== dirname(path); path = dirname(path)) {
			try {
				const about = JSON.parse(readFileSync(join(dirname(path), "package.json"), "utf8"));
				if (typeof about.name === "string" && about.name.endsWith(`/${name}`)) return String(about.version ?? "");
			} catch {
				// One folder further up.
			}
		}
	} catch {
		// No file at all.
	}
	return "";
}

/** A record's tool as its server has it, which mostly is as it is declared. */
export function toolOf({ native, definition }: any): Tool {
	const { description = "", inputSchema = { type: "object" }, annotations = {} } = definition;
	return { name: native, description, inputSchema, annotations };
}

/** Of what a session file holds, which anybody may have written, the elements that are objects. */
export function objects(value: unknown): any[] {
	return Array.isArray(value) ? value.filter((item) => typeof item === "object" && item !== null) : [];
}

/** Declared until the engine has answered, and for the whole session where that takes too long (a stable prompt). */
export const SEARCH_TOOL: Tool = {
	name: "mcp_search",
	description:
		"Find tools of the configured MCP servers and load them. Matching tools become callable natively, under the " +
		"names in the answer, from your next step on. Search for one need at a time, naming the service and the object " +
		'("github create issue", "postgres run query"); if nothing fits, search again in other words. Give `server` to ' +
		"search one server only, `limit` for more than five tools, `load: false` to look without loading.",
	inputSchema: {
		type: "object",
		properties: {
			query: { type: "string", description: "What the tool should do, or its name.", minLength: 1, maxLength: 500 },
			server: { type: "string", description: "Only this server." },
			limit: { type: "integer", description: "How many tools, 5 by default.", minimum: 1, maximum: 50 },
			load: { type: "boolean", description: "false lists without loading." },
		},
		required: ["query"],
		additionalProperties: false,
	},
	annotations: { readOnlyHint: true },
};

/** One conversation: it starts the engine when it is needed, and again, as it was, when it has gone. */
export class Session {
	/** Native names in the order of loading, and every record that was seen. */
	loaded: string[] = [];
	readonly records = new Map<string, any>();
	private id = "";
	private kind = "new";
	private wanted: object[] = [];
	private process: EngineProcess | undefined;
	private entered: Promise<void> | undefined;

	/** `home` is the URL of a file in the folder that holds pi_mcp_shim.json. */
	constructor(private readonly home: string, private readonly host: Host) {}

	/** The host's session starts (`new`) or goes on (`resume`, `branch`) with these records. Starts nothing yet. */
	begin(id: string, kind: string, records: object[]): void {
		this.id = id;
		this.kind = kind;
		this.wanted = records;
		for (const record of records as any[]) this.records.set(record.native, record);
	}

	/** Make the loaded tools exactly those of another place of the conversation. */
	async restore(kind: string, records: object[]): Promise<void> {
		this.begin(this.id, kind, records);
		if (this.process?.alive && this.entered) await this.request("session", { kind, records });
		else await this.enter();
	}

	/** What is needed to load the same tools again. */
	get current(): any[] {
		return this.loaded.flatMap((name) => this.records.get(name) ?? []);
	}

	/** Start the engine if need be; resolves when it knows this session. */
	enter(): Promise<void> {
		if (this.entered && this.process?.alive) return this.entered;
		const entering = this.initialize();
		entering.catch(() => this.entered === entering && (this.entered = undefined));
		this.entered = entering;
		return entering;
	}

	/** Search, load, call, command: the engine is started if need be, its tools are taken over. */
	async request(method: string, params: object, options: Options = {}): Promise<Reply> {
		await unlessAborted(this.enter(), method, options.signal);
		const reply: Reply = await this.process!.request(method, { ...params, session: this.id }, { limit: REQUEST, ...options });
		this.take(reply);
		return reply;
	}

	/** Candidates for the last word of a `/mcp` line; none while the engine is not up, which is started if need be. */
	async complete(line: string): Promise<string[]> {
		await within(COMPLETE, this.enter());
		const { items } = await this.process!.request("complete", { line, session: this.id }, { limit: COMPLETE });
		return items ?? [];
	}

	/** End the engine, which closes its servers; waits `wait` ms for that. */
	async stop(wait: number): Promise<void> {
		this.entered = undefined;
		await this.process?.stop(wait);
	}

	private async initialize(): Promise<void> {
		const about: any = this.host.about();
		const process = new EngineProcess(this.command(about.host), about.cwd, again(about.host), {
			question: (method, params, signal) => this.host.question(method, params, signal),
			notification: (method, params) => {
				if (this.process !== process || params.session !== this.id) return;
				if (method === "toolsChanged") this.take(params);
				else if (method === "notify") this.host.notify(params.level, params.text);
			},
		});
		this.process = process;
		const ask = (records?: object[]) => {
			const session = { id: this.id, kind: this.kind, records };
			return process.request("initialize", { protocol: 1, ...about, session }, { limit: START });
		};
		try {
			const reply = await ask(this.wanted).catch((error) => {
				// More than one line holds, or nothing that the engine reads: it has what it kept of this session.
				if (error.diagnostic.code !== "usage" || !this.wanted.length) throw error;
				return ask();
			});
			if (this.process === process) this.take(reply);
		} catch (error) {
			process.kill("The pi-mcp engine could not be started."); // the next search starts another
			throw error;
		}
	}

	private command(host: string): string[] {
		try {
			const { command } = JSON.parse(readFileSync(new URL("pi_mcp_shim.json", this.home), "utf8"));
			if (Array.isArray(command) && command.length && command.every((word) => typeof word === "string")) return command;
		} catch {
			// Said below.
		}
		const problem = "This shim of pi-mcp is damaged: pi_mcp_shim.json does not name the engine.";
		throw trouble(problem, `Run \`pi-mcp install ${host}\` again.`);
	}

	private take(reply: Reply): void {
		for (const record of reply.details?.loaded ?? []) this.records.set(record.native, record);
		if (!reply.tools) return;
		this.loaded = reply.tools.map(({ name }) => name);
		this.kind = "resume";
		this.wanted = this.current;
		this.host.changed(reply.tools, reply.searchTool);
	}
}

interface Listener {
	question(method: string, params: any, signal: AbortSignal): Promise<object>;
	notification(method: string, params: any): void;
}

interface Waiting {
	method: string;
	progress?: (progress: Progress) => void;
	resolve(reply: Reply): void;
	reject(error: EngineError): void;
}

class EngineProcess {
	private readonly child: ChildProcess;
	private readonly waiting = new Map<number, Waiting>();
	private readonly questions = new Map<string, AbortController>();
	private pieces: string[] = [];
	private length = 0;
	private number = 0;
	/** It has said something since the last look; nothing since the last request; so many looks in a row nothing. */
	private heard = false;
	private owes = false;
	private silent = 0;
	private watch: NodeJS.Timeout | undefined;
	private gone: EngineError | undefined;

	constructor(command: string[], cwd: string, private readonly again: string, private readonly listener: Listener) {
		const { PYTHONPATH, PYTHONHOME, ...env } = process.env;
		// A session of its own: Ctrl-C in the terminal is for the host, and the engine ends with its standard input.
		const detached = process.platform !== "win32";
		const child = spawn(command[0], command.slice(1), { cwd, env, stdio: ["pipe", "pipe", "ignore"], detached, windowsHide: true });
		this.child = child;
		child.on("error", () => this.end(`The pi-mcp engine cannot be started (${command[0]} does not run).`));
		// Answers that are still in the pipe come first.
		child.on("exit", () => setImmediate(() => this.end("The pi-mcp engine has ended unexpectedly.")));
		child.stdin?.on("error", () => {}); // its exit says it
		child.stdout?.on("error", () => {});
		child.stdout?.setEncoding("utf8");
		child.stdout?.on("data", (chunk: string) => this.read(chunk));
	}

	get alive(): boolean {
		return this.gone === undefined;
	}

	/** Rejects with an EngineError; at once when `signal` aborts, and the engine is told. */
	request(method: string, params: object, { signal, progress, limit }: Options = {}): Promise<Reply> {
		return new Promise((resolve, reject) => {
			if (this.gone) return reject(this.gone);
			const call = method === "call";
			const asked = { method, params };
			if (JSON.stringify(asked).length > LONGEST_SENT)
				return reject(trouble("That is more than the engine takes (5 MiB).", "Send less.", method, "usage"));
			const id = ++this.number;
			const settle = () => {
				this.waiting.delete(id);
				signal?.removeEventListener("abort", abort);
				clearTimeout(timer);
			};
			const giveUp = (code: string, message: string) => {
				settle();
				this.send({ method: "cancel", params: { id } });
				reject(trouble(message, call ? UNKNOWN : "Try again when it is wanted.", method, code));
			};
			const abort = () => giveUp("cancelled", call ? "The call was cancelled." : "Cancelled.");
			const timer = limit ? setTimeout(() => giveUp("timeout", `The pi-mcp engine did not answer within ${limit / 1000} s.`), limit) : undefined;
			this.waiting.set(id, {
				method,
				progress,
				resolve: (reply) => (settle(), resolve(reply)),
				reject: (error) => (settle(), reject(error)),
			});
			signal?.addEventListener("abort", abort);
			this.owes = true;
			this.watch ??= setInterval(() => this.look(), PING).unref();
			this.send({ id, ...asked });
			if (signal?.aborted) abort();
		});
	}

	async stop(wait: number): Promise<void> {
		if (this.gone) return;
		const ended = new Promise<void>((resolve) => this.child.once("exit", () => resolve()));
		this.send({ id: ++this.number, method: "shutdown", params: {} });
		this.end("The session has ended.");
		this.child.stdin?.end();
		await within(wait, ended);
		// The host may end before the engine does.
		this.child.unref();
		for (const pipe of [this.child.stdin, this.child.stdout] as any[]) pipe?.unref?.();
	}

	/** End one that was of no use: it may hang. */
	kill(reason: string): void {
		if (this.gone) return;
		this.end(reason);
		this.child.kill("SIGKILL");
	}

	/**
	 * End an engine that says nothing although it is asked again and again; from a request on until all is quiet. Counted
	 * in turns of this loop and not by the clock: a host that was stopped itself has waited for one turn.
	 */
	private look(): void {
		this.silent = this.heard ? 0 : this.silent + 1;
		this.heard = false;
		if (this.silent > PINGS) this.kill("The pi-mcp engine did not answer any more and was ended.");
		else if (!this.waiting.size && !this.owes) this.unwatch();
		else if (this.silent) this.send({ id: ++this.number, method: "ping", params: {} });
	}

	private unwatch(): void {
		clearInterval(this.watch);
		this.watch = undefined;
	}

	private send(message: object): void {
		if (this.child.stdin?.writable) this.child.stdin.write(`${JSON.stringify({ jsonrpc: "2.0", ...message })}\n`);
	}

	private end(reason: string): void {
		if (this.gone) return;
		this.gone = trouble(reason, this.again);
		this.unwatch();
		for (const { method, reject } of [...this.waiting.values()])
			reject(method === "call" ? trouble(`${reason} ${UNKNOWN}`, this.again, method) : this.gone);
		for (const question of this.questions.values()) question.abort();
		this.questions.clear();
	}

	private read(chunk: string): void {
		[this.heard, this.owes] = [true, false];
		let from = 0;
		for (let end = chunk.indexOf("\n"); end >= 0; end = chunk.indexOf("\n", from)) {
			const line = [...this.pieces, chunk.slice(from, end)].join("");
			this.pieces = [];
			this.length = 0;
			from = end + 1;
			this.take(line);
		}
		this.pieces.push(chunk.slice(from));
		this.length += chunk.length - from;
		if (this.length > LONGEST_READ) this.child.kill("SIGKILL");
	}

	private take(line: string): void {
		try {
			const message = JSON.parse(line);
			if (typeof message === "object" && message !== null) this.message(message);
		} catch {
			// Not JSON, or a display that is gone: neither may end the host.
		}
	}

	private message({ id, method, params = {}, error, result = {} }: any): void {
		const waiting = this.waiting.get(id);
		if (method !== undefined) {
			if (id !== undefined) void this.answer(id, method, params);
			else if (method === "cancel") this.questions.get(params.id)?.abort();
			else if (method === "progress") this.waiting.get(params.id)?.progress?.(params);
			else this.listener.notification(method, params);
		} else if (error && typeof error.data?.code === "string") waiting?.reject(new EngineError(error.data));
		else if (error) waiting?.reject(trouble("The pi-mcp engine refused a request of this shim.", this.again, waiting.method, "protocol_error"));
		else waiting?.resolve(result);
	}

	private async answer(id: string, method: string, params: any): Promise<void> {
		const question = new AbortController();
		this.questions.set(id, question);
		let reply: object;
		try {
			reply = { result: await this.listener.question(method, params, question.signal) };
		} catch {
			reply = { error: { code: -32601, message: "not shown" } };
		}
		if (this.questions.delete(id)) this.send({ id, ...reply });
	}
}

/** Wait for `work`, but no longer than until `signal` aborts. */
async function unlessAborted(work: Promise<unknown>, method: string, signal?: AbortSignal): Promise<void> {
	let stop = () => {};
	const aborted = new Promise<never>((_, reject) => {
		stop = () => reject(trouble("Cancelled; nothing was sent.", "Try again when it is wanted.", method, "cancelled"));
		signal?.addEventListener("abort", stop);
		if (signal?.aborted) stop();
	});
	await Promise.race([work, aborted]).finally(() => signal?.removeEventListener("abort", stop));
}

/** Wait for `work`, but `limit` ms at most; a rejection is passed on. */
export async function within(limit: number, work: Promise<unknown> | undefined): Promise<void> {
	let timer: NodeJS.Timeout | undefined;
	const end = new Promise<void>((resolve) => (timer = setTimeout(resolve, limit)));
	await Promise.race([work, end]).finally(() => clearTimeout(timer));
}
