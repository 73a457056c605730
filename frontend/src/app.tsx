/** Routes of the page, and what stands around each. */
import { QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { createRootRoute, createRoute, createRouter, lazyRouteComponent, RouterProvider } from "@tanstack/react-router";
import { ApiError, root } from "./api/client";
import { Failure } from "./parts/failure";
import { Frame, NotFound } from "./parts/frame";
import { parseSearch, stringifySearch, workspaceSearch } from "./state/address";

const rootRoute = createRootRoute({
  component: Frame,
  notFoundComponent: NotFound,
  errorComponent: ({ error }) => <Failure error={error} />,
});

const workspace = createRoute({
  getParentRoute: () => rootRoute,
  path: "/",
  validateSearch: workspaceSearch,
  component: lazyRouteComponent(() => import("./pages/workspace/workspace"), "Workspace"),
});

const router = createRouter({
  routeTree: rootRoute.addChildren([workspace]),
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

const queries = new QueryClient({
  defaultOptions: {
    queries: {
      staleTime: 30_000,
      refetchOnWindowFocus: false,
      retry: (failures, error) => error instanceof ApiError && error.isAway && failures < 3,
    },
  },
});

export function App() {
  return (
    <QueryClientProvider client={queries}>
      <RouterProvider router={router} />
    </QueryClientProvider>
  );
}
