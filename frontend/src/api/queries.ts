/** Questions that several parts of the page ask, and that the router asks ahead. */
import { queryOptions, type QueryClient } from "@tanstack/react-query";
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

/** Everything about a run that fits on a page. */
export function runQuery(project: string, id: string) {
  return queryOptions({
    queryKey: ["run", project, id],
    queryFn: () => data(api.GET("/api/runs/{run_id}", { params: { path: { run_id: id }, query: { project } } })),
  });
}

/** Fetch again what has changed. */
export async function fetchAgain(client: QueryClient, queryKey: readonly unknown[]): Promise<void> {
  // An answer that is on its way may be older than the change; of a first one, `invalidateQueries` would be content with it.
  await client.cancelQueries({ queryKey });
  await client.invalidateQueries({ queryKey });
}
