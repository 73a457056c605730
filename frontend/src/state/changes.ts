/** Which answers of the server a change makes old: the one place that fetches them again. */
import type { QueryClient, QueryKey } from "@tanstack/react-query";
import { Live, type LiveEvent } from "../api/live";
import { fetchAgain } from "../api/queries";

type Concern = (event: LiveEvent, about: string, answer: unknown) => boolean;

const runsChanged: Concern = ({ changed }) => Boolean(changed?.length);
const messagesChanged: Concern = ({ changed, inbox, statuses }) => Boolean(changed?.length || inbox || statuses);
const queueChanged: Concern = ({ queue }) => queue === true;

/** When an answer is old, by the first part of its key; the third part says what it is about. */
const CONCERNS: Record<string, Concern> = {
  columns: runsChanged,
  values: runsChanged,
  inbox: messagesChanged,
  unread: messagesChanged,
  queue: queueChanged,
  "queue-counts": queueChanged,
  views: ({ views }) => Boolean(views),
  tables: ({ tables, changed }) => Boolean(tables?.length || changed?.length),
  table: ({ tables, changed, gone }, name) => Boolean(tables?.includes(name) || changed?.length || gone?.length),
  "live-count": ({ version, statuses }, _, found) => (version !== undefined && !isOf(version, found)) || statuses !== undefined,
  compare: ({ changed, gone }, runs) => isAny(changed, runs) || isAny(gone, runs),
  // A metric that is logged for the first time makes a panel.
  shown: ({ changed, rows }, runs, found) => isAny(changed, runs) || (isAny(rows && Object.keys(rows), runs) && !(found as { metrics: string[] } | undefined)?.metrics.length),
  run: ({ changed, statuses, files }, id) => changed?.includes(id) || statuses?.[id] !== undefined || files?.[id] !== undefined,
};

function isAny(ids: readonly string[] | undefined, runs: string): boolean {
  return ids?.some((id) => runs.includes(id)) ?? false;
}

/** Whether an answer is of this version of the list of runs. */
function isOf(version: number | undefined, answer: unknown): boolean {
  return version !== undefined && (answer as { version?: number } | undefined)?.version === version;
}

/** Whether an event of a project makes the answer with this key old. */
export function isOutdated(key: QueryKey, answer: unknown, event: LiveEvent, project: string): boolean {
  const [kind, of, about] = key as [string, unknown, unknown];
  const concern = CONCERNS[kind];
  if (!concern || (concern !== queueChanged && of !== project)) return false;
  // What happened before the stream was open, or while it was away, is not known.
  if (event.version === -1) return true;
  if (event.opened) return !isOf(event.version, answer);
  return concern(event, typeof about === "string" ? about : "", answer);
}

/** Fetch again all that an event makes old. */
export async function apply(client: QueryClient, event: LiveEvent, project: string): Promise<void> {
  await fetchAgain(client, (query) => isOutdated(query.queryKey, query.state.data, event, project));
}

let followed: { live: Live; end: () => void } | undefined;

/** Return the stream of a project, opened if it was not. It keeps all answers up to date until another one is followed. */
export function follow(client: QueryClient, project: string): Live {
  if (followed?.live.project !== project) {
    followed?.end();
    const live = new Live(project);
    followed = { live, end: live.listen((event) => void apply(client, event, project)) };
  }
  return followed.live;
}
