/** Questions that several parts of the page ask, and that the router asks ahead. */
import { queryOptions, type Query, type QueryClient } from "@tanstack/react-query";
import { api, data } from "./client";

/** The facts of the site, which everything on the page waits for. */
export function siteQuery(project: string) {
  return queryOptions({
    queryKey: ["site", project],
    queryFn: () => data(api.GET("/api/site", { params: { query: { project } } })),
    staleTime: Infinity,
  });
}

/** The names of columns, of keys to filter by, and of metrics. */
export function columnsQuery(project: string) {
  return queryOptions({
    queryKey: ["columns", project],
    queryFn: () => data(api.GET("/api/columns", { params: { query: { project } } })),
  });
}

/** Everything about a run that fits on a page. Taken back when nobody looks at the run any more: it may be removed. */
export function runQuery(project: string, id: string) {
  return queryOptions({
    queryKey: ["run", project, id],
    queryFn: ({ signal }) => data(api.GET("/api/runs/{run_id}", { params: { path: { run_id: id }, query: { project } }, signal })),
  });
}

type IsOld = (query: Query) => boolean;

const planned = new WeakMap<Query, { reasons: IsOld[]; plan: Promise<void> }>();

/** Fetch again what has changed: all answers of which `isOld` is true. */
export async function fetchAgain(client: QueryClient, isOld: IsOld): Promise<void> {
  await Promise.all(client.getQueryCache().findAll({ predicate: isOld }).map((query) => again(client, query, isOld)));
}

/** Fetch one answer again, unless that which is on its way turns out to be newer than the change. */
function again(client: QueryClient, query: Query, isOld: IsOld): Promise<void> {
  const before = planned.get(query);
  if (before) {
    before.reasons.push(isOld);
    return before.plan;
  }
  const reasons = [isOld];
  const underWay = query.state.fetchStatus === "fetching" ? query.promise : undefined;
  const plan = Promise.resolve(underWay)
    .catch(() => undefined)
    .then(() => {
      // What changes from here on is not in the answer that is asked for now.
      planned.delete(query);
      if (!reasons.some((isStillOld) => isStillOld(query))) return;
      return client.invalidateQueries({ predicate: (each) => each === query });
    });
  planned.set(query, { reasons, plan });
  return plan;
}
