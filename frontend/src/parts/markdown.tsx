/** Markdown as elements. No text of a record ever becomes HTML: the parser gives a tree, and this makes elements of it. */
import { fromMarkdown } from "mdast-util-from-markdown";
import { gfmFromMarkdown } from "mdast-util-gfm";
import { gfm } from "micromark-extension-gfm";
import type { Nodes, Parents, RootContent } from "mdast";
import { createElement, Fragment, useMemo, type ReactNode } from "react";
import { Rest } from "./more";
import styles from "./markdown.module.css";

const MOST_CHARACTERS = 200_000;

export function Markdown({ text }: { text: string }) {
  const tree = useMemo(
    () => fromMarkdown(text.slice(0, MOST_CHARACTERS), { extensions: [gfm()], mdastExtensions: [gfmFromMarkdown()] }),
    [text],
  );
  return (
    <div className={styles.markdown}>
      {inside(tree)}
      <Rest count={text.length - MOST_CHARACTERS} of="characters" at="the record has them" />
    </div>
  );
}

function inside(node: Parents): ReactNode[] {
  return node.children.map((child: RootContent, at: number) => <Fragment key={at}>{shown(child)}</Fragment>);
}

function shown(node: Nodes): ReactNode {
  switch (node.type) {
    case "paragraph":
      return <p>{inside(node)}</p>;
    case "heading":
      // The page has the first level; a text begins below it.
      return createElement(`h${Math.min(6, node.depth + 1)}`, {}, ...inside(node));
    case "text":
      return node.value;
    case "emphasis":
      return <em>{inside(node)}</em>;
    case "strong":
      return <strong>{inside(node)}</strong>;
    case "delete":
      return <del>{inside(node)}</del>;
    case "inlineCode":
      return <code>{node.value}</code>;
    case "code":
      return (
        <pre>
          <code>{node.value}</code>
        </pre>
      );
    case "blockquote":
      return <blockquote>{inside(node)}</blockquote>;
    case "list":
      return node.ordered ? <ol start={node.start ?? 1}>{inside(node)}</ol> : <ul>{inside(node)}</ul>;
    case "listItem":
      return (
        <li>
          {typeof node.checked === "boolean" && <input type="checkbox" checked={node.checked} disabled aria-label="done" />}
          {inside(node)}
        </li>
      );
    case "thematicBreak":
      return <hr />;
    case "break":
      return <br />;
    case "link":
      return isSafe(node.url) ? (
        <a href={node.url} rel="noreferrer noopener" target="_blank">
          {inside(node)}
        </a>
      ) : (
        <span title={node.url}>{inside(node)}</span>
      );
    case "image":
      // Nothing is fetched from elsewhere: a picture is a link to it.
      return isSafe(node.url) ? (
        <a href={node.url} rel="noreferrer noopener" target="_blank">
          {node.alt ?? node.url}
        </a>
      ) : (
        <span title={node.url}>{node.alt ?? "picture"}</span>
      );
    case "table":
      return (
        <table>
          <tbody>{inside(node)}</tbody>
        </table>
      );
    case "tableRow":
      return <tr>{inside(node)}</tr>;
    case "tableCell":
      return <td>{inside(node)}</td>;
    case "html":
      // As the text that it is.
      return <code>{node.value}</code>;
    default:
      return "children" in node ? inside(node) : "value" in node ? node.value : null;
  }
}

function isSafe(url: string): boolean {
  return /^(https?:|mailto:)/i.test(url);
}
