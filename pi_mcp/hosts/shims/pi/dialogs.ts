/** The engine's questions in Pi's own dialogs. Comes in: a question. Goes out: what the person says, if anything. */

import type { ExtensionContext } from "@earendil-works/pi-coding-agent";

type UI = ExtensionContext["ui"] | undefined;

/** The answer as the engine wants it. `screen`: Pi's own, not its RPC mode. `tell` shows what a dialog has no room for. */
export async function ask(
	ui: UI, screen: boolean, method: string, params: any, signal: AbortSignal, tell: (text: string) => void,
): Promise<object> {
	const { question, details = "", secret, choices = ["No", "Yes"] } = params;
	if (method === "confirm" && !screen) return { ok: (await ui?.confirm(question, details, { signal })) === true };
	const whole = details ? `${question}\n${details}` : question;
	// Pi cuts a dialog that is higher than its screen at the end, where the choices stand.
	const [columns, rows] = [process.stdout.columns || 80, process.stdout.rows || 24];
	const title = screen ? fitted(whole, columns * 0.8, rows - 13 - Math.min(choices.length, 10)) : whole;
	if (title !== whole) tell(whole);
	// Its own yes-or-no has Yes first there: an Enter that was meant for the prompt would agree.
	if (method === "confirm") return { ok: (await ui?.select(title, choices, { signal })) === "Yes" };
	if (method === "select") return { choice: (await ui?.select(title, choices, { signal })) ?? null };
	if (method !== "input") throw new Error(method);
	const text = await (secret && screen ? hiddenInput(ui, title, signal) : ui?.input(title, undefined, { signal }));
	return { text: text ?? null };
}

/** The text in about `height` lines of `width` columns; what does not fit is counted. */
function fitted(text: string, width: number, height: number): string {
	const all = [...text];
	let [at, row, column] = [0, 0, 0];
	for (; at < all.length && row < Math.max(3, height); at++) {
		column += all[at] > "~" ? 2 : 1;
		if (all[at] === "\n" || column >= width) [row, column] = [row + 1, 0];
	}
	return at < all.length ? `${all.slice(0, at).join("").trimEnd()}\n… and ${all.length - at} more characters, see above` : text;
}

/** A line that nobody can read while it is typed or pasted; undefined when dismissed. */
function hiddenInput(ui: UI, title: string, signal: AbortSignal) {
	return ui?.custom<string | undefined>((tui, theme, keys, done) => {
		let text = "";
		signal.addEventListener("abort", () => done(undefined), { once: true });
		return {
			invalidate() {},
			render: (width) => [
				...(title.match(new RegExp(`.{1,${Math.max(1, width - 2)}}`, "gu")) ?? []).map((line) => ` ${line}`),
				theme.fg("accent", ` > ${"*".repeat(Math.max(0, Math.min(text.length, width - 5)))}_`),
				theme.fg("dim", " Enter sends, Escape stops".slice(0, width)),
			],
			handleInput(key) {
				if (keys.matches(key, "tui.select.cancel")) return done(undefined);
				if (keys.matches(key, "tui.select.confirm")) return done(text);
				if (key === "\x7f" || key === "\b") text = text.slice(0, -1);
				else text += key.replace(/\x1b\[[0-9;:]*[~A-Za-z]/g, "").replace(/[\x00-\x1f\x7f]/g, "");
				tui.requestRender();
			},
		};
	});
}
