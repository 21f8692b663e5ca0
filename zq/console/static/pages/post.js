// SPDX-License-Identifier: Apache-2.0
// Post to a queue or publish to a topic by hand. The body is sent as it was typed, digit by digit.

import { useEffect, useState } from "preact/hooks";
import { call, get, pathOf } from "../api.js";
import { fault as faultOf } from "../json.js";
import { Act, announce } from "../parts/act.js";
import { newKey } from "../parts/confirm.js";
import { isObject } from "../parts/form.js";
import { html } from "../parts/html.js";
import { Fault } from "../parts/states.js";
import { hrefOf } from "../route.js";
import { age, bytes, count, several } from "../text.js";

const MOST = 100;

/** What another page wants to have posted: the path of the queue or topic, and the text of the body. */
export const draft = { path: "", text: "" };

/** The tab. `done`: called when something was posted. */
export function Post({ route, metadata, done }) {
  const [limits, setLimits] = useState(null);
  const [form, setForm] = useState(() => ({ text: taken(pathOf(route)), ttl: "", delay: "", copies: "1", attributes: "", lines: null, key: newKey() }));
  const [outcome, setOutcome] = useState({ fault: null, posted: 0, busy: false });
  useEffect(() => void get("limits").then(setLimits, (fault) => setOutcome({ fault, posted: 0, busy: false })), []);
  const change = (news) => setForm((now) => ({ ...now, ...news, key: newKey() }));
  const wrong = wrongIn(form, limits);
  const send = async (event) => {
    event.preventDefault();
    if (wrong || outcome.busy) return announce(wrong || "The message is being posted.", true);
    setOutcome({ fault: null, posted: 0, busy: true });
    const result = await posted(route, form);
    setOutcome({ ...result, busy: false });
    if (!result.fault) change({});
    done();
  };
  return html`<form class="form" onSubmit=${send} noValidate>
    <${Text} form=${form} change=${change} />
    <${Terms} topic=${route.topic} form=${form} change=${change} limits=${limits} metadata=${metadata} />
    ${wrong && (form.text || form.lines) && html`<p class="wrong" role="alert">${wrong}</p>`}
    <${Outcome} route=${route} outcome=${outcome} />
    <div class="row"><${Act} rule=${route.topic ? "topics:publish" : "messages:create"} kind="main" submit=${true} when=${!wrong} why=${wrong}>${route.topic ? "Publish" : "Post"}</${Act}></div>
  </form>`;
}

async function posted(route, form) {
  const bodies = form.lines?.texts ?? Array.from({ length: Number(form.copies) }, () => form.text);
  try {
    await call("POST", pathOf(route, "/messages"), { body: posting(form, bodies), key: form.key });
  } catch (fault) {
    return { fault, posted: 0 };
  }
  announce(`${several(bodies.length, "message")} ${participle(route)}.`);
  return { fault: null, posted: bodies.length };
}

function Outcome({ route, outcome }) {
  if (outcome.fault) return html`<${Fault} fault=${outcome.fault} />`;
  if (!outcome.posted) return null;
  return html`<p>${several(outcome.posted, "message")} ${participle(route)}: <a href=${hrefOf(route)}>show the ${route.topic ? "topic" : "queue"}</a>.</p>`;
}

function participle({ topic }) {
  return topic ? "published" : "posted";
}

function taken(path) {
  const text = draft.path === path ? draft.text : "";
  Object.assign(draft, { path: "", text: "" });
  return text;
}

function posting(form, bodies) {
  const { ttl, delay } = form;
  const attributes = form.attributes.trim();
  const terms = [ttl && `"ttl":${Number(ttl)}`, delay && `"delay":${Number(delay)}`, attributes && `"attributes":${attributes}`].filter(Boolean);
  return `{"messages":[${bodies.map((body) => `{${[...terms, `"body":${body}`].join(",")}}`).join(",")}]}`;
}

function wrongIn(form, limits) {
  const fault = form.lines ? form.lines.fault : faultOf(form.text);
  if (fault) return fault;
  if (form.attributes.trim() && !isObject(form.attributes)) return "Attributes must be a JSON object.";
  if (!limits) return "";
  const size = new Blob(form.lines?.texts ?? [form.text]).size;
  if (size > limits.max_messages_post_size) return `The body must be at most ${bytes(limits.max_messages_post_size)}, not ${bytes(size)}.`;
  return (
    within("ttl", form.ttl, limits.min_message_ttl, limits.max_message_ttl) ||
    within("delay", form.delay, 0, limits.max_message_delay) ||
    within("copies", form.copies || "0", 1, MOST)
  );
}

function within(name, text, low, high) {
  if (text === "") return "";
  const right = /^\d+$/.test(text) && Number(text) >= low && Number(text) <= high;
  return right ? "" : `${name} must be an integer between ${count(low)} and ${count(high)}.`;
}

function Text({ form, change }) {
  const picked = async (event) => {
    const [file] = event.target.files;
    change({ lines: file ? linesOf(await file.text()) : null });
  };
  return html`${!form.lines &&
    html`<label class="field">
      <span>Body (JSON)</span>
      <textarea rows="8" spellcheck=${false} placeholder=${'{"order": 1}'} value=${form.text} onInput=${(event) => change({ text: event.target.value })}></textarea>
    </label>`}
    <label class="field">
      <span>Or a file with one JSON body per line</span>
      <input type="file" onChange=${picked} />
    </label>
    ${form.lines && !form.lines.fault && html`<p>${several(form.lines.texts.length, "message")} in the file.</p>`}`;
}

function linesOf(text) {
  const texts = text.split("\n").map((line) => line.trim()).filter(Boolean);
  const at = texts.findIndex((line) => faultOf(line));
  return { texts, fault: texts.length === 0 ? "The file is empty." : at === -1 ? "" : `Line ${at + 1}: ${faultOf(texts[at])}` };
}

function Terms({ topic, form, change, limits, metadata }) {
  const delayed = !topic && metadata?._default_message_delay > 0;
  const field = (name, label, hint) => html`<label class="field short">
    <span>${label}</span>
    <input type="text" inputmode="numeric" autocomplete="off" placeholder=${hint} value=${form[name]} onInput=${(event) => change({ [name]: event.target.value.trim() })} />
  </label>`;
  return html`<div class="row top">
      ${field("ttl", "Time to live (seconds)", String(metadata?._default_message_ttl ?? ""))}
      ${delayed && field("delay", "Delay (seconds)", String(metadata._default_message_delay))}
      ${!form.lines && field("copies", `Copies (1 to ${MOST})`, "1")}
    </div>
    <label class="field">
      <span>Attributes of each message (JSON object)</span>
      <input type="text" autocomplete="off" spellcheck=${false} placeholder=${'{"kind": "invoice"}'} value=${form.attributes} onInput=${(event) => change({ attributes: event.target.value })} />
    </label>
    <p class="quiet">
      ${limits && `The time to live must be between ${age(limits.min_message_ttl)} and ${age(limits.max_message_ttl)}. If the field is empty, the default of the ${topic ? "topic" : "queue"} applies. `}
      ${!topic && !delayed && "This queue does not delay messages."}
    </p>`;
}
