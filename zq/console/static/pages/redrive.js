// SPDX-License-Identifier: Apache-2.0
// The redrive of dead letters: a dry run, then steps of a bounded size at a bounded rate, until the end or *Stop*.

import { useEffect, useRef, useState } from "preact/hooks";
import { call, queuePath } from "../api.js";
import { Act, announce } from "../parts/act.js";
import { ask } from "../parts/confirm.js";
import { html } from "../parts/html.js";
import { NameInput } from "../parts/queuenames.js";
import { Fault } from "../parts/states.js";
import { count, several, visible } from "../text.js";

const STEP = 1000;
const START = { to: "", ids: "", limit: "", step: 100, pace: 1 };

/**
 * The tab. On a queue with a dead-letter queue (`dead`), it redrives the letters of the queue from there; on others, the
 * letters within the queue. `done`: called when messages have moved.
 */
export function Redrive({ route, dead, sources, done }) {
  const [within, setWithin] = useState(!dead);
  const what = within ? { queue: route.queue } : { queue: dead, origin: route.queue };
  return html`${dead && sources?.length > 0 && html`<${Choice} queue=${route.queue} dead=${dead} within=${within} set=${setWithin} />`}
    <${Letters} key=${within} what=${what} done=${done} />`;
}

function Choice({ queue, dead, within, set }) {
  const choice = (value, text) => html`<label class="check"><input type="radio" name="what" checked=${within === value} onChange=${() => set(value)} /><span>${text}</span></label>`;
  return html`<fieldset><legend>Dead letters to redrive</legend>
    ${choice(false, `Dead letters from ${visible(queue)}, now in ${visible(dead)}`)} ${choice(true, `Dead letters from other queues, now in ${visible(queue)}`)}
  </fieldset>`;
}

function Letters({ what, done }) {
  const path = queuePath(what.queue, "/redrive");
  const [form, setForm] = useState(START);
  const [{ plan, fault }, show] = useState({});
  const [run, setRun] = useState(null);
  const stopped = useRef(false);
  useEffect(() => () => (stopped.current = true), []);
  const change = (news) => (setForm({ ...form, ...news }), show({}));
  const look = async (event) => {
    event.preventDefault();
    setRun(null);
    show(await dryRun(path, form, what.origin));
  };
  const begin = async () => {
    stopped.current = false;
    show({});
    loop(path, { ...form, origin: what.origin }, plan.would_move, stopped, setRun, done);
  };
  return html`<p class="quiet">${what.origin ? `A redrive moves dead letters from ${visible(what.queue)} back to ${visible(what.origin)}` : "A redrive moves ready messages back to their original queues"},
      oldest first. If you close this page, the redrive stops.</p>
    <${Form} form=${form} change=${change} look=${look} busy=${run?.busy} />
    ${fault && html`<${Fault} fault=${fault} />`}
    ${plan && html`<${Plan} plan=${plan} what=${what} form=${form} begin=${begin} />`}
    ${run && html`<${Progress} run=${run} queue=${what.queue} stop=${() => (stopped.current = true)} />`}`;
}

function named(form) {
  return form.ids.split(/\s+/).filter(Boolean);
}

/** The body of a request for all that the form says. */
function asked(form, origin) {
  const ids = named(form);
  const which = ids.length ? { ids } : { limit: Number(form.limit) || undefined, origin };
  return { to: form.to || undefined, ...which };
}

async function dryRun(path, form, origin) {
  const told = call("POST", path, { body: JSON.stringify({ ...asked(form, origin), dry_run: true }) });
  return told.then(({ text }) => ({ plan: JSON.parse(text) }), (fault) => ({ fault }));
}

/** Steps one after the other; tells how many messages went, also after a failure. */
async function loop(path, form, most, stopped, tell, done) {
  const ids = named(form);
  let run = { moved: 0, most, remaining: null, lost: 0, fault: null, busy: true };
  let at = 0;
  while (!stopped.current && !run.fault && (ids.length ? at < ids.length : run.moved < most)) {
    tell(run);
    const began = Date.now();
    const size = ids.length ? Number(form.step) : Math.min(Number(form.step), most - run.moved);
    const step = ids.length ? { ids: ids.slice(at, at + size) } : { limit: size, origin: form.origin };
    const before = run.moved;
    run = await stepped(path, { to: form.to || undefined, ...step }, run);
    at += size;
    tell(run);
    if (!ids.length && run.moved === before) break;
    await later(Math.max(0, 1000 / form.pace - (Date.now() - began)));
  }
  tell({ ...run, busy: false, stopped: stopped.current });
  announce(`${several(run.moved, "message")} moved.`, run.fault !== null);
  done();
}

/** What is known after one more request. */
async function stepped(path, body, run) {
  try {
    const { moved, remaining, lost = [] } = JSON.parse((await call("POST", path, { body: JSON.stringify(body) })).text);
    return { ...run, moved: run.moved + moved, remaining, lost: run.lost + lost.length };
  } catch (fault) {
    return { ...run, fault };
  }
}

function later(milliseconds) {
  return new Promise((resolve) => setTimeout(resolve, milliseconds));
}

function Form({ form, change, look, busy }) {
  const field = (name, label, more) => html`<label class="field" key=${name}>
    <span>${label}</span><input value=${form[name]} onInput=${(event) => change({ [name]: event.target.value })} ...${more} />
  </label>`;
  return html`<form class="form" onSubmit=${look}>
    <label class="field"><span>Target queue (empty: the original queue of each message)</span><${NameInput} id="redrive-to" text=${form.to} change=${(text) => change({ to: text })} /></label>
    ${field("limit", "Maximum number of messages (empty: 10,000)", { type: "number", min: 1, max: 10000 })}
    ${field("step", "Messages per step (1 to 1,000)", { type: "number", min: 1, max: STEP, required: true })}
    ${field("pace", "Steps per second (1 to 10)", { type: "number", min: 1, max: 10, required: true })}
    <label class="field">
      <span>Only these message ids (up to 1,000)</span>
      <textarea rows="2" spellcheck=${false} value=${form.ids} onInput=${(event) => change({ ids: event.target.value })}></textarea>
    </label>
    <div class="row"><${Act} rule="messages:delete_all" submit=${true} when=${!busy} why="A redrive is running.">Dry run<//></div>
  </form>`;
}

function Plan({ plan, what, form, begin }) {
  const lines = [
    ...Object.entries(plan.origins).map(([name, number]) => [visible(name), number, ""]),
    ...Object.entries(plan.missing_origin).map(([name, number]) => [visible(name), number, "deleted queue; the redrive creates it again"]),
    ...(plan.without_origin ? [["unknown", plan.without_origin, form.to ? "" : "not moved"]] : []),
    ...(plan.lost?.length ? [["not found", plan.lost.length, "deleted, claimed or in another queue"]] : []),
  ];
  const body = html`<p>The redrive moves ${several(plan.would_move, "message")} from ${visible(what.queue)} to ${form.to ? visible(form.to) : what.origin ? visible(what.origin) : "their original queues"}. Claimed and delayed messages are not moved.</p>`;
  const verb = `Redrive ${count(plan.would_move)}`;
  return html`<section aria-label="Dry run">
    <p><strong>${several(plan.would_move, "message")} would move</strong>; ${count(plan.counted)} inspected.</p>
    <table class="plain">
      <thead><tr><th scope="col">Origin</th><th scope="col" class="number">Messages</th><th scope="col">Note</th></tr></thead>
      <tbody>${lines.map(([name, number, note]) => html`<tr key=${name}><th scope="row">${name}</th><td class="number">${count(number)}</td><td>${note}</td></tr>`)}</tbody>
    </table>
    <div class="row">
      <${Act} rule="messages:delete_all" kind="main" when=${plan.would_move > 0} why="Nothing would move." onClick=${() => ask({ title: verb, verb, harmless: true, body, act: begin })}>${verb}…<//>
    </div>
  </section>`;
}

function Progress({ run, queue, stop }) {
  return html`<section aria-label="Progress">
    <progress max=${run.most} value=${run.moved} aria-label="Moved"></progress>
    <p>${count(run.moved)} of ${count(run.most)} moved${run.remaining !== null && `; ${count(run.remaining)} still in ${visible(queue)}`}${run.lost > 0 && `; ${count(run.lost)} not found`}.${" "}
      ${!run.busy && (run.stopped ? "Stopped." : "Finished.")}</p>
    ${run.fault && html`<${Fault} fault=${run.fault} />`}
    ${run.busy && html`<button type="button" onClick=${stop}>Stop</button>`}
  </section>`;
}
