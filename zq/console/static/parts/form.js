// SPDX-License-Identifier: Apache-2.0
// A form made from a schema of the interface's own document: a field for each property that it names.

import { parse, write } from "../json.js";
import { count, visible } from "../text.js";
import { html } from "./html.js";

/**
 * What a field takes.
 * @param {any} schema of a property
 * @returns {{kind: "integer" | "boolean" | "choice" | "text" | "json", low?: number, high?: number, also: number[],
 *   choices: string[], pattern?: string, says: string}}
 */
export function fieldOf(schema) {
  const branches = schema.anyOf ?? [schema];
  const types = branches.flatMap((branch) => branch.type ?? []);
  const choices = branches.flatMap((branch) => branch.enum ?? []).filter((choice) => choice !== null);
  const ranged = branches.find((branch) => branch.minimum !== undefined) ?? {};
  const is = (name) => types.includes(name);
  const kind = is("integer") ? "integer" : is("boolean") ? "boolean" : is("object") ? "json" : choices.length ? "choice" : "text";
  const says = (schema.description ?? "").replace(/^must be /, "").replace(/, or null$/, "");
  const also = kind === "integer" ? choices : [];
  return { kind, low: ranged.minimum, high: ranged.maximum, also, choices, pattern: schema.pattern, says };
}

/**
 * What is wrong with what was typed; "" if nothing. An empty text unsets the property.
 * @param {string} text
 * @param {ReturnType<typeof fieldOf>} field
 * @returns {string}
 */
export function wrong(text, field) {
  if (text.trim() === "") return "";
  if (field.kind === "integer") return wrongInteger(text.trim(), field);
  if (field.kind === "text" && field.pattern && !new RegExp(field.pattern, "u").test(text)) return `Must be ${field.says}.`;
  if (field.kind === "json" && !isObject(text)) return "Must be an object, as JSON.";
  return "";
}

function wrongInteger(text, { low, high, also, says }) {
  if (!/^-?\d+$/.test(text)) return "Must be an integer.";
  const number = Number(text);
  if (also.includes(number)) return "";
  if ((low !== undefined && number < low) || (high !== undefined && number > high)) {
    return says ? `Must be ${says}.` : `Must be from ${count(low)} to ${count(high)}.`;
  }
  return "";
}

/**
 * @param {string} text
 * @returns {boolean} whether it is an object, as JSON
 */
export function isObject(text) {
  try {
    const value = parse(text);
    return typeof value === "object" && value !== null && !Array.isArray(value);
  } catch {
    return false;
  }
}

/**
 * The JSON of what was typed, digit by digit.
 * @param {string} text
 * @param {ReturnType<typeof fieldOf>} field
 * @returns {string}
 */
export function jsonOf(text, { kind }) {
  return kind === "choice" || kind === "text" ? JSON.stringify(text) : text.trim();
}

/**
 * What a field shows of a value of json.js; "" if there is none.
 * @param {unknown} value
 * @param {ReturnType<typeof fieldOf>} field
 * @returns {string}
 */
export function textOf(value, { kind }) {
  if (value === undefined || value === null) return "";
  if (typeof value === "string" && kind !== "json") return value;
  return write(value, kind === "json" ? 2 : 0);
}

/** One field. `refused`: what the server said against it. */
export function Field({ name, field, text, change, refused }) {
  const fault = wrong(text, field) || refused;
  const id = `field${name}`;
  const more = { id, "aria-invalid": fault ? "true" : undefined, "aria-describedby": `${id}-says` };
  return html`<div class=${fault ? "field faulty" : "field"}>
    <label for=${id}><code>${visible(name)}</code></label>
    <${Input} field=${field} text=${text} change=${change} more=${more} />
    <span id=${`${id}-says`} class=${fault ? "wrong" : "quiet"}>${fault || field.says || "empty: unset"}</span>
  </div>`;
}

function Input({ field, text, change, more }) {
  const typed = (event) => change(event.target.value);
  const choices = field.kind === "boolean" ? ["true", "false"] : field.choices;
  if (field.kind === "boolean" || field.kind === "choice") {
    const options = ["", ...choices].map((choice) => html`<option key=${choice} value=${choice}>${choice || "unset"}</option>`);
    return html`<select value=${text} onChange=${typed} ...${more}>${options}</select>`;
  }
  if (field.kind === "json") return html`<textarea rows="3" spellcheck=${false} value=${text} onInput=${typed} ...${more}></textarea>`;
  return html`<input type="text" inputmode=${field.kind === "integer" ? "numeric" : "text"} autocomplete="off" spellcheck=${false} value=${text} onInput=${typed} ...${more} />`;
}
