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

const planned = new WeakMap<Query, Promise<void>>();

/** Fetch again what has changed: all answers of which `isOld` is true. */
export async function fetchAgain(client: QueryClient, isOld: (query: Query) => boolean): Promise<void> {
  await Promise.all(client.getQueryCache().findAll({ predicate: isOld }).map((query) => again(client, query)));
}

/** Fetch one answer again, behind that which is on its way: it may be older than the change. */
function again(client: QueryClient, query: Query): Promise<void> {
  const before = planned.get(query);
  if (before) return before;
  const underWay = query.state.fetchStatus === "fetching" ? query.promise : undefined;
  const plan = Promise.resolve(underWay)
    .catch(() => undefined)
    .then(() => {
      // What changes from here on is not in the answer that is asked for now.
      planned.delete(query);
      return client.invalidateQueries({ predicate: (each) => each === query });
    });
  planned.set(query, plan);
  return plan;
}
