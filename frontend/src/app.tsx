/** Routes of the page, and what stands around each. */
import { QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { createRootRoute, createRoute, createRouter, lazyRouteComponent, RouterProvider } from "@tanstack/react-router";
import { ApiError, root } from "./api/client";
import { columnsQuery, runQuery, siteQuery } from "./api/queries";
import { askForCurves, lookOf } from "./chart/sheets";
import { Failure } from "./parts/failure";
import { Frame, NotFound } from "./parts/frame";
import { follow } from "./state/changes";
import {
  axisOf,
  compareSearch,
  parametersSearch,
  parseSearch,
  parseZoom,
  projectSearch,
  queueSearch,
  runSearch,
  stringifySearch,
  tableSearch,
  workspaceSearch,
  type RunSearch,
} from "./state/address";

const queries = new QueryClient({
  defaultOptions: {
    queries: {
      staleTime: 30_000,
      refetchOnWindowFocus: false,
      retry: (failures, error) => error instanceof ApiError && error.isAway && failures < 3,
    },
  },
});

/** Ask for what a page shows first beside its script, not behind it; the page tells what goes wrong. */
function askAhead(answer: Promise<unknown>): void {
  answer.catch(() => undefined);
}

/** Ask for a run, then for its curves where those are opened. */
async function askForRun(id: string, search: RunSearch): Promise<void> {
  const project = search.project ?? "";
  const { metrics } = await queries.query(runQuery(project, id));
  if (search.tab !== "curves") return;
  askForCurves(lookOf(project, axisOf(search), parseZoom(search.z)), [id], metrics.map((metric) => metric.name));
}

const rootRoute = createRootRoute({
  validateSearch: projectSearch,
  beforeLoad: ({ search }) => {
    const project = search.project ?? "";
    // The stream first: of what is asked for once it is open no change can be missed.
    const live = follow(queries, project);
    askAhead(queries.query(siteQuery(project)));
    return { live };
  },
  component: Frame,
  notFoundComponent: NotFound,
  errorComponent: ({ error }) => <Failure error={error} />,
});

const workspace = createRoute({
  getParentRoute: () => rootRoute,
  path: "/",
  validateSearch: workspaceSearch,
  beforeLoad: ({ search }) => askAhead(queries.query(columnsQuery(search.project ?? ""))),
  component: lazyRouteComponent(() => import("./pages/workspace/workspace"), "Workspace"),
});

const run = createRoute({
  getParentRoute: () => rootRoute,
  path: "/runs/$id",
  validateSearch: runSearch,
  beforeLoad: ({ params, search }) => askAhead(askForRun(params.id, search)),
  component: lazyRouteComponent(() => import("./pages/run/run"), "RunPage"),
});

const compare = createRoute({
  getParentRoute: () => rootRoute,
  path: "/compare",
  validateSearch: compareSearch,
  component: lazyRouteComponent(() => import("./pages/compare/compare"), "ComparePage"),
});

const parameters = createRoute({
  getParentRoute: () => rootRoute,
  path: "/parameters",
  validateSearch: parametersSearch,
  component: lazyRouteComponent(() => import("./pages/parameters/parameters"), "ParametersPage"),
});

const tables = createRoute({
  getParentRoute: () => rootRoute,
  path: "/tables",
  validateSearch: tableSearch,
  component: lazyRouteComponent(() => import("./pages/tables/tables"), "TablesPage"),
});

const table = createRoute({
  getParentRoute: () => rootRoute,
  path: "/tables/$name",
  validateSearch: tableSearch,
  component: lazyRouteComponent(() => import("./pages/tables/table"), "TablePage"),
});

const inbox = createRoute({
  getParentRoute: () => rootRoute,
  path: "/inbox",
  validateSearch: projectSearch,
  component: lazyRouteComponent(() => import("./pages/inbox/inbox"), "InboxPage"),
});

const queue = createRoute({
  getParentRoute: () => rootRoute,
  path: "/queue",
  validateSearch: queueSearch,
  component: lazyRouteComponent(() => import("./pages/queue/queue"), "QueuePage"),
});

const projects = createRoute({
  getParentRoute: () => rootRoute,
  path: "/projects",
  validateSearch: projectSearch,
  component: lazyRouteComponent(() => import("./pages/projects/projects"), "ProjectsPage"),
});

const router = createRouter({
  routeTree: rootRoute.addChildren([workspace, run, compare, parameters, tables, table, inbox, queue, projects]),
  basepath: new URL(root).pathname,
  parseSearch: (text) => parseSearch(text),
  stringifySearch: (search) => stringifySearch(search),
  defaultPreload: false,
  scrollRestoration: false,
});

declare module "@tanstack/react-router" {
  interface Register {
    router: typeof router;
  }
}

export function App() {
  return (
    <QueryClientProvider client={queries}>
      <RouterProvider router={router} />
    </QueryClientProvider>
  );
}
