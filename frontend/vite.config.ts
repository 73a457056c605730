import react from "@vitejs/plugin-react";
import { defineConfig, type Plugin } from "vite";

/** Fill in what the server fills in: the way to the root of the site, and the nonce of styles. */
const placeholders: Plugin = {
  name: "placeholders",
  apply: "serve",
  transformIndexHtml: (html) => html.replace("{base}", "/").replaceAll("{nonce}", ""),
};

const server = process.env.ASSAY_UI_SERVER ?? "http://127.0.0.1:7341";

export default defineConfig({
  base: "./",
  plugins: [react(), placeholders],
  html: { cspNonce: "{nonce}" },
  build: {
    outDir: "../src/assay/web/static",
    emptyOutDir: true,
    target: "es2022",
    sourcemap: false,
    modulePreload: { polyfill: false },
    // One style sheet, and two scripts before that of the page itself: each further file is a turn of the server.
    cssCodeSplit: false,
    rolldownOptions: {
      output: {
        codeSplitting: {
          groups: [
            { name: "first", tags: ["$initial"] },
            { name: "shared", test: /[\\/]src[\\/](chart|state|table|parts[\\/]copy|pages[\\/]workspace[\\/]acts)|[\\/]uplot[\\/]/, minShareCount: 2 },
          ],
        },
      },
    },
    chunkSizeWarningLimit: 900,
  },
  server: { proxy: { "/api": server, "/login": server } },
});
