// SPDX-License-Identifier: Apache-2.0
// A body: as a tree that opens level by level, as its text, copied and saved. All of it is text of strangers.

import { useState } from "preact/hooks";
import { call } from "../api.js";
import { exact, isBranch, parse, write } from "../json.js";
import { bytes, count, several, visible } from "../text.js";
import { announce } from "./act.js";
import { html } from "./html.js";

const AT_ONCE = 100;

/**
 * Load the body of a message. Throws Refused.
 * @param {string} path of the message
 * @param {string} [member] of the answer, in which the message is
 * @returns {Promise<{body: unknown, raw: string}>} the exact body, and the answer as it came
 */
export async function bodyOf(path, member) {
  const { text } = await call("GET", path);
  const read = parse(text);
  return { body: (member ? read[member] : read).body, raw: text };
}

/** `value`: of json.js; `name`: of the file that is saved; `raw`: the text where the browser rounds numbers. */
export function Body({ value, name, raw = "" }) {
  const [view, setView] = useState(isBranch(value) && exact ? "tree" : "raw");
  const text = exact ? write(value) : raw;
  const shown = exact ? write(value, 2) : raw;
  return html`<section class="body" aria-label="Body">
    <div class="row">
      <h3>Body</h3>
      <span class="quiet">${bytes(new Blob([text]).size)}</span>
      <div class="choice" role="group" aria-label="View of the body">
        ${exact && html`<${Choice} name="tree" view=${view} set=${setView} />`}
        <${Choice} name="raw" view=${view} set=${setView} />
      </div>
      <button type="button" onClick=${() => copy(text, "The body")}>Copy</button>
      <button type="button" onClick=${() => save(text, name)}>Download</button>
    </div>
    ${view === "raw"
      ? html`<pre tabindex="0" aria-label="Body as text">${visible(shown)}</pre>`
      : html`<div class="tree" tabindex="0" role="group" aria-label="Body as a tree"><${Branch} value=${value} label="" open=${true} /></div>`}
    ${!exact && html`<p class="quiet">This browser rounds large numbers, so you see the raw response of the server.</p>`}
  </section>`;
}

function Choice({ name, view, set }) {
  return html`<button type="button" aria-pressed=${view === name} onClick=${() => set(name)}>
    ${name[0].toUpperCase() + name.slice(1)}
  </button>`;
}

function Branch({ value, label, open = false }) {
  const [opened, setOpened] = useState(open);
  if (!isBranch(value)) return html`<div class="leaf"><${Label} label=${label} /><${Leaf} value=${value} /></div>`;
  const list = Array.isArray(value);
  const size = list ? value.length : Object.keys(value).length;
  return html`<details open=${opened} onToggle=${(event) => setOpened(event.currentTarget.open)}>
    <summary>
      <${Label} label=${label} /><span class="quiet">${list ? `[ ${several(size, "element")} ]` : `{ ${several(size, "member")} }`}</span>
    </summary>
    ${opened && html`<${Children} value=${value} />`}
  </details>`;
}

function Children({ value }) {
  const [most, setMost] = useState(AT_ONCE);
  const names = Object.keys(value);
  return html`<div class="children">
    ${names.slice(0, most).map((name) => html`<${Branch} key=${name} value=${value[name]} label=${name} />`)}
    ${names.length > most &&
    html`<button type="button" onClick=${() => setMost(most + AT_ONCE)}>Show ${count(names.length - most)} more</button>`}
  </div>`;
}

function Label({ label }) {
  return label === "" ? null : html`<span class="label">${visible(label)}: </span>`;
}

function Leaf({ value }) {
  const kind = typeof value === "string" ? "text" : value === null || typeof value === "boolean" ? "word" : "number";
  return html`<span class=${`value ${kind}`}>${visible(write(value))}</span>`;
}

/**
 * @param {string} text
 * @param {string} what it is, for the sentence
 */
export async function copy(text, what) {
  try {
    await navigator.clipboard.writeText(text);
    announce(`${what} was copied to the clipboard.`);
  } catch {
    announce("The browser blocked copying. Select the text and copy it yourself.", true);
  }
}

function save(text, name) {
  const url = URL.createObjectURL(new Blob([text], { type: "application/octet-stream" }));
  const link = document.createElement("a");
  Object.assign(link, { href: url, download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}
