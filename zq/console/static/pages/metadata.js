// SPDX-License-Identifier: Apache-2.0
// The metadata of a queue or a topic as a form. Only changes are sent, so that two editors of different keys both succeed.

import { useEffect, useState } from "preact/hooks";
import { call, get, pathOf } from "../api.js";
import { parse, write } from "../json.js";
import { Act, announce } from "../parts/act.js";
import { ask } from "../parts/confirm.js";
import { Field, fieldOf, isObject, jsonOf, textOf, wrong } from "../parts/form.js";
import { html } from "../parts/html.js";
import { Fault, Loading } from "../parts/states.js";
import { several, visible } from "../text.js";

// The keys of a topic that have an effect, and the one that is shown without any.
const OF_TOPICS = ["_max_messages_post_size", "_default_message_ttl", "_enable_encrypt_messages"];
// The key whose value is the name of a queue.
const QUEUE_KEY = "_dead_letter_queue";
const NOT_OF_TOPICS = "_default_message_delay";

/** The tab. `done`: called when something was saved. */
export function Metadata({ route, done }) {
  const [known, setKnown] = useState(null);
  const [fault, setFault] = useState(null);
  const load = () => read(route).then(setKnown, setFault);
  useEffect(() => {
    load();
  }, [route.queue, route.topic]);
  if (!known) return fault ? html`<${Fault} fault=${fault} again=${load} />` : html`<${Loading} />`;
  const saved = () => {
    load();
    done();
  };
  return html`<${Form} key=${known.text} route=${route} known=${known} saved=${saved} />`;
}

async function read(route) {
  const [{ text }, document] = await Promise.all([call("GET", pathOf(route)), get("openapi.json")]);
  const schemas = Object.entries(document.components.schemas.Metadata.properties);
  const meant = route.topic ? schemas.filter(([name]) => OF_TOPICS.includes(name)) : schemas;
  const fields = Object.fromEntries(meant.map(([name, schema]) => [name, fieldOf(schema)]));
  const values = parse(text);
  const texts = Object.fromEntries(Object.entries(fields).map(([name, field]) => [name, textOf(values[name], field)]));
  const free = Object.fromEntries(Object.entries(values).filter(([name]) => !(name in fields) && !(route.topic && name === NOT_OF_TOPICS)));
  return { text, values, fields, texts, free: write(free, 2) };
}

function Form({ route, known, saved }) {
  const [texts, setTexts] = useState(known.texts);
  const [free, setFree] = useState(known.free);
  const [refused, setRefused] = useState(null);
  const change = (name) => (text) => {
    setTexts((now) => ({ ...now, [name]: text }));
    setRefused(null);
  };
  const { changes, why } = judged(known, texts, free);
  const when = why === "";
  const at = refused && Object.keys(known.fields).find((name) => refused.message.includes(name));
  const review = (event) => {
    event.preventDefault();
    if (when) ask(question(route, changes, saved, setRefused));
  };
  return html`<form class="form" onSubmit=${review} noValidate>
    <p class="quiet">To use the server's default, clear the field. Only changed keys are saved.</p>
    ${refused && !at && html`<${Fault} fault=${refused} />`}
    <${Fields} fields=${known.fields} texts=${texts} change=${change} refused=${{ at, message: refused?.message }} />
    <${Free} text=${free} change=${setFree} />
    <div class="row"><${Act} rule=${route.topic ? "topics:update" : "queues:update"} kind="main" submit=${true} when=${when} why=${why}>Save…</${Act}></div>
  </form>`;
}

function Fields({ fields, texts, change, refused }) {
  const field = ([name, its]) =>
    html`<${Field} key=${name} name=${name} field=${its} text=${texts[name]} change=${change(name)} refused=${refused.at === name && refused.message} queues=${name === QUEUE_KEY} />`;
  return html`<div class="fields">${Object.entries(fields).map(field)}</div>`;
}

function Free({ text, change }) {
  const fault = isObject(text) ? "" : "Must be a JSON object.";
  return html`<label class=${fault ? "field faulty" : "field"}>
    <span>Your own keys, as a JSON object</span>
    <textarea rows="6" spellcheck=${false} aria-invalid=${fault ? "true" : undefined} value=${text} onInput=${(event) => change(event.target.value)}></textarea>
    ${fault && html`<span class="wrong">${fault}</span>`}
  </label>`;
}

/** What is to be saved; `why` not, "" if it can be. */
function judged(known, texts, free) {
  const faulty = Object.keys(known.fields).filter((name) => wrong(texts[name], known.fields[name]));
  if (faulty.length) return { changes: [], why: `Correct these fields first: ${faulty.join(", ")}.` };
  if (!isObject(free)) return { changes: [], why: "Custom keys must form a JSON object." };
  const changes = changed(known, texts, free);
  return { changes, why: changes.length ? "" : "Nothing has changed." };
}

/** What differs: the key, its JSON before and after; undefined = it was not there, or goes. */
function changed(known, texts, free) {
  const named = Object.entries(known.fields)
    .filter(([name]) => texts[name] !== known.texts[name])
    .map(([name, field]) => ({ name, before: shown(known.values[name]), after: texts[name].trim() === "" ? undefined : jsonOf(texts[name], field) }));
  const before = parse(known.free);
  const after = parse(free);
  const names = [...new Set([...Object.keys(before), ...Object.keys(after)])];
  const others = names
    .map((name) => ({ name, before: shown(before[name]), after: shown(after[name]) }))
    .filter((change) => change.before !== change.after);
  return [...named, ...others];
}

function shown(value) {
  return value === undefined ? undefined : write(value);
}

function question(route, changes, saved, refuse) {
  const act = async () => {
    const operations = changes.map(({ name, after }) => operation(name, after));
    try {
      await call("PATCH", pathOf(route), { body: `[${operations.join(",")}]` });
    } catch (fault) {
      if (fault.status !== 400) throw fault;
      return refuse(fault);
    }
    announce(`${several(changes.length, "key")} saved.`);
    saved();
  };
  const body = html`<ul class="diff">${changes.map(difference)}</ul><p>All other keys keep their values.</p>`;
  return { title: `Save ${several(changes.length, "key")}`, verb: "Save", harmless: true, body, act };
}

function difference({ name, before, after }) {
  return html`<li key=${name}>
    <code>${visible(name)}</code>: <del>${visible(before ?? "not set")}</del> → <ins>${visible(after ?? "not set")}</ins>
  </li>`;
}

function operation(name, after) {
  const path = JSON.stringify(`/metadata/${name.replaceAll("~", "~0").replaceAll("/", "~1")}`);
  return after === undefined ? `{"op":"remove","path":${path}}` : `{"op":"add","path":${path},"value":${after}}`;
}
