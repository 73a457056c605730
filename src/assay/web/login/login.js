// Turns the link that `assay ui` printed into a session, and takes its code out of the address at once.
"use strict";

const said = document.getElementById("said");
const form = document.getElementById("form");
const field = document.getElementById("token");
const isLogin = location.pathname === new URL("login", document.baseURI).pathname;
const code = location.hash.slice(1);

if (isLogin && code) history.replaceState(null, "", location.pathname);

function enter() {
  location.replace(isLogin ? new URL(".", document.baseURI).href : location.href);
  if (!isLogin) location.reload();
}

function ask(text) {
  said.textContent = text;
  form.hidden = false;
  field.focus();
}

async function open(token) {
  const headers = { "content-type": "application/json" };
  const body = JSON.stringify({ token });
  const answer = await fetch("login", { method: "POST", headers, body });
  if (answer.ok) return enter();
  const { what, fix } = await answer.json().catch(() => ({ what: "The server gave no answer." }));
  ask([what, fix].filter(Boolean).join("\n"));
}

async function begin() {
  if (isLogin && code) return open(code);
  // Somebody who came from another site sends no cookie with the first request, and has a session all the same.
  const answer = await fetch("api/site").catch(() => null);
  if (answer && answer.ok) return enter();
  ask("Open the link that `assay ui` printed in the terminal, or paste it here.");
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  const text = field.value.trim();
  field.value = "";
  open(text.includes("#") ? text.slice(text.indexOf("#") + 1) : text);
});

begin().catch(() => ask("The server does not answer."));
