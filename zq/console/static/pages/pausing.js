// SPDX-License-Identifier: Apache-2.0
// A queue that takes no new work: what of it is paused, and the way there and back.

import { call, queuePath } from "../api.js";
import { Act, announce } from "../parts/act.js";
import { ask } from "../parts/confirm.js";
import { html } from "../parts/html.js";
import { visible } from "../text.js";

const SAYS = {
  claims: "Claims are paused: consumers get no messages. Producers can still post.",
  posts: "Posts are paused: the server rejects them with 409. Consumers can still claim.",
  all: "Claims and posts are paused: consumers get no messages, and the server rejects posts with 409.",
};
const CHOICES = [
  ["all", "Claims and posts"],
  ["claims", "Claims only"],
  ["posts", "Posts only"],
];

/** Beside the name of a queue that is paused. */
export function PausedMark({ paused }) {
  if (!(paused in SAYS)) return null;
  return html` <span class="mark paused">${paused === "all" ? "paused" : `${paused} paused`}</span>`;
}

/** Above the page of a queue that is paused: what that means, and the way back. */
export function Paused({ queue, metadata, done }) {
  const paused = metadata?._paused;
  if (!(paused in SAYS)) return null;
  const resume = () => change(queue, null).then(() => said(`${visible(queue)} is resumed.`, done), (fault) => announce(fault.message, true));
  return html`<div class="state paused">
    <p class="state-title">Paused</p>
    <p>${SAYS[paused]} Consumers can still settle claimed messages.</p>
    <p><${Act} rule="queues:update" kind="main" onClick=${resume}>Resume</${Act}></p>
  </div>`;
}

/** The button. `done`: called when the queue was paused. */
export function PauseButton({ queue, metadata, done }) {
  if (!metadata || metadata._paused in SAYS) return null;
  return html`<${Act} rule="queues:update" onClick=${() => askToPause(queue, done)}>Pause…</${Act}>`;
}

function askToPause(queue, done) {
  const body = html`<fieldset><legend>Pause</legend>${CHOICES.map(choice)}</fieldset>
    <p>Consumers can still settle claimed messages. No messages are lost.</p>`;
  const act = async () => {
    await change(queue, document.querySelector("dialog input[name=paused]:checked").value);
    said(`${visible(queue)} is paused.`, done);
  };
  ask({ title: `Pause ${visible(queue)}`, verb: "Pause", harmless: true, body, act });
}

function choice([value, label]) {
  return html`<label class="check" key=${value}>
    <input type="radio" name="paused" value=${value} defaultChecked=${value === "all"} /><span>${label}</span>
  </label>`;
}

function said(text, done) {
  announce(text);
  done();
}

async function change(queue, paused) {
  const operation = { op: "add", path: "/metadata/_paused", value: paused };
  await call("PATCH", queuePath(queue), { body: JSON.stringify([operation]) });
}
