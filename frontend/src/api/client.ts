/** The API of the server, typed by its own description. */
import createClient from "openapi-fetch";
import type { components, paths } from "./schema";

export type Schema = components["schemas"];
export type RunLine = Schema["RunLine"];
export type GroupLine = Schema["GroupLine"];
export type RunsPage = Schema["RunsPage"];
export type ColumnNames = Schema["ColumnNames"];
export type SiteFacts = Schema["SiteFacts"];
export type Problem = Schema["ErrorBody"];

/** What the server said was wrong, or that it said nothing. */
export class ApiError extends Error {
  readonly status: number;
  readonly problem: Problem;

  constructor(status: number, problem: Problem) {
    super(problem.what);
    this.status = status;
    this.problem = problem;
  }

  /** Whether there was no answer at all. */
  get isAway(): boolean {
    return this.status === 0;
  }

  /** Whether it has a place in the filter, which shows it there. */
  get isOfFilter(): boolean {
    return typeof this.problem.start === "number";
  }
}

/** The root of the site as the browser sees it: a proxy may have put a path in front of it. */
export const root = new URL(".", document.baseURI).href;

let facts: SiteFacts | null = null;

/** Remember what the server said at first: changes carry its header. */
export function rememberFacts(found: SiteFacts): void {
  facts = found;
}

/** Fetch from the server; ApiError when it refuses, or is not there. */
async function guarded(request: Request): Promise<Response> {
  if (facts && request.method !== "GET") request.headers.set(facts.writeHeader, facts.write);
  let answer: Response;
  try {
    answer = await fetch(request);
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    throw new ApiError(0, { what: "The server does not answer.", where: "", fix: "Is `assay ui` still running?" });
  }
  if (answer.status === 401) signedOut();
  if (!answer.ok && answer.status !== 304) throw new ApiError(answer.status, await problemOf(answer));
  return answer;
}

async function problemOf(answer: Response): Promise<Problem> {
  try {
    return (await answer.json()) as Problem;
  } catch {
    return { what: `The server answered with an error (${answer.status}).`, where: "", fix: "" };
  }
}

let left = false;

/** Go to the page that makes a session, which leads back here. */
function signedOut(): void {
  if (left) return;
  left = true;
  location.reload();
}

export const api = createClient<paths>({
  baseUrl: root.replace(/\/$/, ""),
  fetch: guarded,
  querySerializer: { array: { style: "form", explode: true } },
});

/** Return the data of an answer; errors were thrown by then. */
export async function data<T>(call: Promise<{ data?: T }>): Promise<T> {
  return (await call).data as T;
}

/** Return the bytes at an address of the API. */
export async function bytes(path: string, signal?: AbortSignal): Promise<ArrayBuffer> {
  const answer = await guarded(new Request(new URL(path, root), signal ? { signal } : {}));
  return answer.arrayBuffer();
}
