/**
 * pi-mcp in Pi: `mcp_search`, the tools that it loads, and `/mcp`, all done by the pi-mcp engine (./engine.ts).
 *
 * Comes in: Pi's events, tool calls and commands. Goes out: tools that Pi declares, dialogs, answers. Loading this file
 * starts nothing; the engine lives from session_start to session_shutdown. What is loaded is kept in the details of
 * search results and in `pi-mcp` entries: every branch has its own set.
 */

import { writeSync } from "node:fs";
import type { ExtensionAPI, ExtensionContext } from "@earendil-works/pi-coding-agent";
import { ask } from "./dialogs.ts";
import { asError, line, objects, type Progress, SEARCH_TOOL, Session, type Tool, toolOf, versionOf, within } from "./engine.ts";

const SEARCH = SEARCH_TOOL.name;
const ENTRY = "pi-mcp";
/** Milliseconds that the first model request waits for the engine, and that a change of branch does. */
const [FIRST_REQUEST, BRANCH] = [1000, 10_000];

export default function piMcp(pi: ExtensionAPI): void {
	let ctx: ExtensionContext | undefined;
	let soon: NodeJS.Timeout | undefined;
	let started: Promise<void> | undefined;
	let asked = false;
	const session = new Session(import.meta.url, { about, changed, question, notify: tell });
	/** What Pi has from us, each as it was declared; what it was to give the model, and does not; results that are errors. */
	const declared = new Map<string, string>();
	let [active, refused]: string[][] = [[], []];
	const failed = new Set<string>();
	/** What the session itself says by now: hashes by native name, and the search tool that its requests carry. */
	let saved = new Map<string, unknown>();
	let searchTool: Tool | undefined;
	let searchSaved = false;
	let dialogs: Promise<unknown> = Promise.resolve();
	let open = 0;

	function about() {
		const interactive = ctx?.hasUI === true;
		const ui = interactive ? ["confirm", "select", "input", "progress"] : [];
		const hostVersion = versionOf("pi-coding-agent");
		return { host: "pi", hostVersion, cwd: ctx?.cwd ?? process.cwd(), interactive, ui, ...hostLists(others()) };
	}

	// Tools

	/** Names that are not ours to take. */
	function others(): string[] {
		return pi.getAllTools().flatMap(({ name }) => (declared.has(name) ? [] : [name]));
	}

	function changed(tools: Tool[], search?: Tool): void {
		if (search && !searchTool) declare(search);
		const theirs = others();
		const ours = tools.filter(({ name }) => !theirs.includes(name));
		for (const tool of ours) declare(tool);
		const names = ours.map(({ name }) => name);
		const gone = active.filter((name) => !names.includes(name));
		const fresh = names.filter((name) => !active.includes(name));
		// Only appending keeps the provider's cache. What somebody has switched off in Pi stays off.
		if (gone.length || fresh.length)
			pi.setActiveTools([...new Set([...pi.getActiveTools().filter((name) => !gone.includes(name)), ...fresh])]);
		active = names;
		const taken = pi.getActiveTools();
		refused = tools.map(({ name }) => name).filter((name) => theirs.includes(name) || !taken.includes(name));
	}

	function declare(tool: Tool): void {
		const form = JSON.stringify(tool);
		if (declared.get(tool.name) === form) return;
		declared.set(tool.name, form);
		const { name, description, inputSchema: parameters, annotations } = tool;
		// Pi 0.85 knows neither. A script must not search: what it loads would be in no result of the session.
		const more = name === SEARCH ? { exposure: "model-only" } : { defaultActive: false };
		const execute = async (id: string, params: any, signal?: AbortSignal, update?: (partial: any) => void) => {
			const progress = (at: Progress) => update?.({ content: [{ type: "text", text: line(at) }], details: undefined });
			try {
				const [method, wanted] = name === SEARCH ? ["search", params] : ["call", { name, arguments: params }];
				const { text, content, details, isError = false } = await session.request(method, wanted, { signal, progress });
				if (isError) failed.add(id);
				if (name !== SEARCH) return { content, details, isError };
				return { content: [{ type: "text", text: told(text) }], details: { ...details, ...kept(details?.loaded) } };
			} catch (error) {
				failed.add(id);
				const { message, diagnostic } = asError(error);
				const details = { loaded: [], diagnostics: [diagnostic], files: [] };
				return { content: [{ type: "text", text: message }], details, isError: true };
			}
		};
		pi.registerTool({ name, label: name, description, parameters, annotations, ...more, execute } as any);
	}

	// In Pi 0.85 a result that has details cannot say itself that it is an error.
	on("tool_result", ({ toolCallId }) => (failed.delete(toolCallId) ? { isError: true } : undefined));

	// Sessions

	on("session_start", ({ reason }, context) => {
		ctx = context;
		const [records, empty] = readBranch();
		const kind = empty || reason === "new" ? "new" : reason === "fork" ? "branch" : "resume";
		session.begin(context.sessionManager.getSessionId(), kind, records);
		// The screen comes first.
		if (context.mode === "tui") soon = setTimeout(start, 200);
		else start();
	});

	function start(): void {
		clearTimeout(soon);
		if (started) return;
		started = session.enter();
		started.catch((error) => tell("error", asError(error).message));
	}

	on("before_agent_start", async () => {
		start();
		if (!asked) await within(FIRST_REQUEST, started?.catch(() => {}));
		asked = true;
		searchTool ??= JSON.parse(declared.get(SEARCH)!);
		save();
	});

	on("session_tree", async (_, context) => {
		ctx = context;
		const [records] = readBranch();
		await within(BRANCH, session.restore("branch", records));
	});

	on("session_compact", () => within(BRANCH, session.restore("compact", session.current)));

	on("session_shutdown", async ({ reason }) => {
		ctx = undefined;
		clearTimeout(soon);
		// Where Pi goes on, the next engine reads what this one writes at its end.
		await session.stop(reason === "quit" ? 0 : FIRST_REQUEST);
	});

	/** Records of the branch, and whether it is empty. Its tools are declared at once, as they were: the engine may be late. */
	function readBranch(): [object[], boolean] {
		const branch: any[] = ctx!.sessionManager.getBranch();
		const found = new Map<string, any>();
		const forms = new Map<string, Tool>();
		for (const { type, message, customType, data } of branch) {
			const result = type === "message" && message.role === "toolResult" && message.toolName === SEARCH;
			const told = result ? message.details : type === "custom" && customType === ENTRY ? data : {};
			for (const record of objects(told?.loaded)) {
				if (typeof record.native !== "string" || !objects([record.definition]).length) continue;
				found.set(record.native, record);
				forms.set(record.native, toolOf(record));
			}
			for (const tool of objects(told?.declared)) if (found.has(tool.name)) forms.set(tool.name, tool);
			for (const name of Array.isArray(told?.unloaded) ? told.unloaded : []) found.delete(name);
			if (told?.searchTool?.name !== SEARCH) continue;
			searchTool = told.searchTool as Tool;
			searchSaved = true;
			declare(searchTool);
		}
		changed([...found.keys()].map((name) => forms.get(name)!));
		saved = new Map([...found].map(([name, { hash }]) => [name, hash]));
		return [[...found.values()], !branch.some(({ type }) => type === "message")];
	}

	/** What is new to the session, as it keeps it: records, and the form in which Pi has a tool where that is another. */
	function kept(records: any[] = []): { loaded: any[]; declared: Tool[] } {
		const loaded = records.filter(({ native, hash }) => saved.get(native) !== hash);
		for (const { native, hash } of loaded) saved.set(native, hash);
		const forms = loaded.filter((record) => declared.get(record.native) !== JSON.stringify(toolOf(record)));
		return { loaded, declared: forms.flatMap(({ native }) => JSON.parse(declared.get(native) ?? "[]")) };
	}

	/** Write down what no search result says: tools that are always loaded, `/mcp load`, `/mcp unload`. */
	function save(unloaded: string[] = []): void {
		const first = searchSaved ? undefined : searchTool;
		const fresh = kept(session.current);
		if (fresh.loaded.length || unloaded.length || first) pi.appendEntry(ENTRY, { ...fresh, unloaded, searchTool: first });
		for (const name of unloaded) saved.delete(name);
		searchSaved ||= first !== undefined;
	}

	// /mcp

	pi.registerCommand("mcp", {
		description: "MCP servers and their tools (/mcp help)",
		getArgumentCompletions: async (prefix) => {
			const items: string[] = await session.complete(`/mcp ${prefix}`).catch(() => []);
			const last = /\S*$/.exec(prefix)![0];
			const before = prefix.slice(0, prefix.length - last.length);
			// Pi's Enter takes what is offered and sends nothing: a word that is whole is to be sent.
			return items.includes(last) ? [] : items.map((item) => ({ value: before + item, label: item }));
		},
		handler: async (words, context) => {
			ctx = context;
			const stop = new AbortController();
			const release = context.mode === "tui" ? context.ui.onTerminalInput((key) => stopped(key, stop)) : () => {};
			try {
				const held = session.loaded;
				const progress = (at: Progress) => context.ui.setStatus(ENTRY, `${line(at)} · Escape stops`);
				progress({ text: `/mcp ${words}` });
				const reply = await session.request("command", { line: words }, { signal: stop.signal, progress });
				save(/^\s*unload\b/.test(words) ? held.filter((name) => !session.loaded.includes(name)) : []);
				tell("answer", told(reply.text));
			} catch (error) {
				if (stop.signal.aborted) tell("info", "Stopped.");
				else tell("error", asError(error).message);
			} finally {
				release();
				context.ui.setStatus(ENTRY, undefined);
			}
		},
	});

	/** Escape stops a command, unless it is for a dialog. */
	function stopped(key: string, stop: AbortController) {
		if (open || !/^\x1b(\[27(;1(:1)?)?u)?$/.test(key)) return undefined;
		stop.abort();
		return { consume: true };
	}

	// What the engine says and asks

	/** Dialogs come one after the other. */
	function question(method: string, params: any, signal: AbortSignal): Promise<object> {
		open++;
		const turn = dialogs.then(() => dialog(method, params, signal)).finally(() => open--);
		dialogs = turn.catch(() => {});
		return turn;
	}

	function dialog(method: string, params: any, signal: AbortSignal): Promise<object> {
		const ui = ctx?.hasUI && !signal.aborted ? ctx.ui : undefined;
		return ask(ui, ctx?.mode === "tui", method, params, signal, (text) => tell("info", text));
	}

	function tell(level: string, text: string): void {
		try {
			if (ctx?.hasUI) ctx.ui.notify(text, level === "error" || level === "warning" ? level : "info");
			// In print mode standard output is the answer; in JSON mode it holds events alone.
			else if (level === "answer" && ctx?.mode === "print") writeSync(1, `${text}\n`);
			else if (level !== "info" && level !== "debug") process.stderr.write(`${text}\n`);
		} catch {
			// The session has been replaced, or nobody reads.
		}
	}

	/** A handler that never throws into Pi. */
	function on(event: string, handler: (event: any, context: ExtensionContext) => unknown): void {
		pi.on(event as any, async (happened: any, context: ExtensionContext) => {
			try {
				return await handler(happened, context);
			} catch (error) {
				tell("error", asError(error).message);
			}
		});
	}

	/** An answer's text, and what Pi does not take of it. */
	function told(text: string): string {
		if (!refused.length) return text;
		return `${text}\nPi does not take ${refused.join(", ")}: it has another tool of the name, or it is switched off there.`;
	}

	declare(SEARCH_TOOL);
}

/** The lists that Pi was started with; where another program embeds it, `changed` finds out. */
function hostLists(others: string[]): { allowed?: string[]; excluded: string[] } {
	const list = (...names: string[]) => {
		const at = process.argv.findLastIndex((word) => names.includes(word));
		return at < 0 ? undefined : (process.argv[at + 1] ?? "").split(",").map((name) => name.trim()).filter(Boolean);
	};
	const tools = list("--tools", "-t") ?? (process.argv.some((word) => /^(--no-tools|-nt)$/.test(word)) ? [] : undefined);
	// Pi 1: a list of +name and -name alone changes what is active at first, and allows everything.
	const allowed = tools?.length && tools.every((name) => /^[+-]/.test(name)) ? undefined : tools;
	return { allowed, excluded: [...(list("--exclude-tools", "-xt") ?? []), ...others] };
}
