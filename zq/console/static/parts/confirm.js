// SPDX-License-Identifier: Apache-2.0
// The dialog before something is destroyed: what, how many, what stays; where much goes, its name is typed.

import { useEffect, useRef, useState } from "preact/hooks";
import { html } from "./html.js";
import { Fault } from "./states.js";
import { visible } from "../text.js";

let opener = () => {};

/**
 * Ask, and carry out what was confirmed. The focus returns to where it was.
 * @param {{title: string, verb: string, body: unknown, typed?: string, act: (key: string) => Promise<void>,
 *   harmless?: boolean}} question
 */
export function ask(question) {
  opener(question);
}

/** Where the dialog is drawn. */
export function Asker() {
  const [question, setQuestion] = useState(null);
  opener = setQuestion;
  return question && html`<${Dialog} key=${question.title} question=${question} close=${() => setQuestion(null)} />`;
}

function Dialog({ question, close }) {
  const element = useModal(close);
  const [typed, setTyped] = useState("");
  const [state, setState] = useState({ busy: false, fault: null });
  const [key] = useState(newKey);
  const ready = !state.busy && (question.typed === undefined || typed === question.typed);
  const act = async (event) => {
    event.preventDefault();
    if (!ready) return;
    setState({ busy: true, fault: null });
    await question.act(key).then(close, (fault) => setState({ busy: false, fault }));
  };
  return html`<dialog ref=${element} aria-labelledby="dialog-title">
    <form method="dialog" onSubmit=${act}>
      <h2 id="dialog-title">${question.title}</h2>
      <div class="dialog-body">${question.body}</div>
      ${question.typed !== undefined && html`<${Typed} wanted=${question.typed} typed=${typed} set=${setTyped} />`}
      ${state.fault && html`<${Fault} fault=${state.fault} />`}
      <div class="row end">
        <button type="button" onClick=${close}>Cancel</button>
        <button type="submit" class=${question.harmless ? "main" : "danger"} aria-disabled=${ready ? undefined : "true"}>${question.verb}</button>
      </div>
    </form>
  </dialog>`;
}

/** @returns {string} a new idempotency key */
export function newKey() {
  return `console-${[...crypto.getRandomValues(new Uint32Array(4))].join("-")}`;
}

/**
 * @param {string} id of an input
 * @returns {string} its text without surrounding spaces
 */
export function given(id) {
  return document.getElementById(id).value.trim();
}

function Typed({ wanted, typed, set }) {
  return html`<label class="field">
    <span>To confirm, type <code>${visible(wanted)}</code></span>
    <input type="text" autocomplete="off" spellcheck=${false} value=${typed} onInput=${(event) => set(event.target.value)} />
  </label>`;
}

/**
 * A dialog that is open as long as it is drawn, and gives the focus back.
 * @param {() => void} close called by Escape
 * @returns {object} the ref of the dialog
 */
export function useModal(close) {
  const element = useRef(null);
  useEffect(() => {
    const before = document.activeElement;
    const dialog = element.current;
    const cancelled = (event) => {
      event.preventDefault();
      close();
    };
    dialog.addEventListener("cancel", cancelled);
    dialog.showModal();
    return () => {
      dialog.close();
      if (before?.isConnected) before.focus();
    };
  }, []);
  return element;
}
