// SPDX-License-Identifier: Apache-2.0
// A form for an object, made from its schema in the OpenAPI document: one field per property.

import { parse, write } from "../json.js";
import { count, visible } from "../text.js";
import { html } from "./html.js";
import { NameInput } from "./queuenames.js";

// How the schema's descriptions of a constraint begin.
const CONSTRAINT = /^must be /;

/**
 * What a field takes.
 * @param {any} schema of a property
 * @returns {{kind: "integer" | "boolean" | "choice" | "text" | "json", low?: number, high?: number, also: number[],
 *   choices: string[], pattern?: string, meaning: string, says: string}} `says`: the constraint
 */
export function fieldOf(schema) {
  const branches = schema.anyOf ?? [schema];
  const types = branches.flatMap((branch) => branch.type ?? []);
  const choices = branches.flatMap((branch) => branch.enum ?? []).filter((choice) => choice !== null);
  const ranged = branches.find((branch) => branch.minimum !== undefined) ?? {};
  const is = (name) => types.includes(name);
  const kind = is("integer") ? "integer" : is("boolean") ? "boolean" : is("object") ? "json" : choices.length ? "choice" : "text";
  const { title = "", description = "", pattern } = schema;
  const isConstraint = CONSTRAINT.test(description);
  const constraint = [description, ...branches.map((branch) => branch.description ?? "")].find((text) => CONSTRAINT.test(text));
  const says = constraint ? constraint.replace(CONSTRAINT, "").replace(/,? or null$/, "") : boundsOf(ranged);
  const also = kind === "integer" ? choices : [];
  const meaning = (title || (isConstraint ? "" : description)).replaceAll("`", "");
  return { kind, low: ranged.minimum, high: ranged.maximum, also, choices, pattern, meaning, says };
}

function boundsOf({ minimum, maximum }) {
  return minimum === undefined ? "" : maximum === undefined ? `at least ${count(minimum)}` : `an integer from ${count(minimum)} to ${count(maximum)}`;
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
  if (field.kind === "json" && !isObject(text)) return "Must be a JSON object.";
  return "";
}

function wrongInteger(text, { low, high, also, says }) {
  if (!/^-?\d+$/.test(text)) return "Must be an integer.";
  const number = Number(text);
  if (also.includes(number)) return "";
  if ((low !== undefined && number < low) || (high !== undefined && number > high)) {
    return says ? `Must be ${says}.` : `Must be between ${count(low)} and ${count(high)}.`;
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

/** One field. `refused`: the server's error; `queues`: whether the value is a queue's name, so that queues are offered. */
export function Field({ name, field, text, change, refused, queues = false }) {
  const fault = wrong(text, field) || refused;
  const id = `field${name}`;
  const more = { id, "aria-invalid": fault ? "true" : undefined, "aria-describedby": `${id}-means ${id}-says` };
  const input = queues ? html`<${NameInput} ...${more} text=${text} change=${change} />` : html`<${Input} field=${field} text=${text} change=${change} more=${more} />`;
  return html`<div class=${fault ? "field faulty" : "field"}>
    <label for=${id}><code>${visible(name)}</code></label>
    <span id=${`${id}-means`} class="means">${field.meaning}</span>
    ${input}
    <span id=${`${id}-says`} class=${fault ? "wrong" : "quiet"}>${fault || (field.says && `${field.says[0].toUpperCase()}${field.says.slice(1)}`) || "Empty: not set"}</span>
  </div>`;
}

function Input({ field, text, change, more }) {
  const typed = (event) => change(event.target.value);
  const choices = field.kind === "boolean" ? ["true", "false"] : field.choices;
  if (field.kind === "boolean" || field.kind === "choice") {
    const options = ["", ...choices].map((choice) => html`<option key=${choice} value=${choice}>${choice || "not set"}</option>`);
    return html`<select value=${text} onChange=${typed} ...${more}>${options}</select>`;
  }
  if (field.kind === "json") return html`<textarea rows="3" spellcheck=${false} value=${text} onInput=${typed} ...${more}></textarea>`;
  return html`<input type="text" inputmode=${field.kind === "integer" ? "numeric" : "text"} autocomplete="off" spellcheck=${false} value=${text} onInput=${typed} ...${more} />`;
}
