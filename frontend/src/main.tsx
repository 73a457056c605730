/** The page begins here. */
import { StrictMode } from "react";
import { createRoot } from "react-dom/client";
import { App } from "./app";
import { applyTheme, followOtherPages, kept, watchKept, type Theme } from "./state/local";
import "./state/nonce";
import "./style/base.css";

applyTheme(kept<Theme>("theme", "system"));
watchKept((names) => names.includes("theme") && applyTheme(kept<Theme>("theme", "system")));
followOtherPages();
createRoot(document.getElementById("root")!).render(
  <StrictMode>
    <App />
  </StrictMode>,
);
