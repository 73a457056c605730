/** The nonce of this page: what makes styles of its own says it, and no style of anybody else is taken. */
import { setNonce } from "get-nonce";

export const nonce = document.querySelector<HTMLMetaElement>("meta[property=csp-nonce]")?.nonce ?? "";

setNonce(nonce);
