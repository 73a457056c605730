// Runs Sphinx's own search on a built site: node search_docs.js SITE, queries as JSON on stdin.
// Prints, for each query, the pages in the order in which the search page lists them.
"use strict";
const fs = require("fs");
const path = require("path");
const vm = require("vm");

const site = process.argv[2];
const scripts = [
  "_static/documentation_options.js",
  "_static/doctools.js",
  "_static/sphinx_highlight.js",
  "_static/language_data.js",
  "_static/base-stemmer.js",
  "_static/english-stemmer.js",
  "_static/searchtools.js",
];
// The scripts expect a page. Searching touches only these parts of it; nothing is drawn.
const element = { dataset: { content_root: "" }, lastChild: null };
const page = {
  document: {
    readyState: "loading",
    addEventListener: () => {},
    getElementById: () => element,
    documentElement: element,
  },
  localStorage: { setItem: () => {}, getItem: () => null },
  console,
};
page.window = page;
const context = vm.createContext(page);
for (const name of scripts) {
  const file = path.join(site, name);
  if (fs.existsSync(file)) vm.runInContext(fs.readFileSync(file, "utf8"), context, { filename: name });
}
vm.runInContext("Search.query = () => {};", context); // setIndex would draw a waiting query
vm.runInContext(fs.readFileSync(path.join(site, "searchindex.js"), "utf8"), context);

context.queries = JSON.parse(fs.readFileSync(0, "utf8"));
const found = vm.runInContext(
  `queries.map((query) => Search._performSearch(...Search._parseQuery(query)).map((result) => result[0]).reverse())`,
  context,
);
process.stdout.write(JSON.stringify(found));
