/** Icons, drawn for this page: 16 px, one line of one width. */
import type { ReactNode } from "react";

const paths = {
  play: <path d="M5 3.5v9l7-4.500z" fill="currentColor" stroke="none" />,
  pause: <path d="M5.500 3.500v9M10.500 3.500v9" strokeWidth="2.400" />,
  first: <path d="M3.500 2.500h9M8 13.500v-8M4.500 9L8 5.500 11.500 9" />,
  check: <path d="M3.500 8.500l3 3 6-7" />,
  cross: <path d="M4 4l8 8M12 4l-8 8" />,
  stop: <rect x="4" y="4" width="8" height="8" rx="1" fill="currentColor" stroke="none" />,
  question: <path d="M6 6a2 2 0 1 1 3 1.700c-.7.400-1 .800-1 1.500M8 11.700v.1" />,
  warning: <path d="M8 2.500l6 10.500H2zM8 6.500v3M8 11.300v.1" />,
  chevron: <path d="M4.500 6.500L8 10l3.500-3.500" />,
  right: <path d="M6.500 4.500L10 8l-3.500 3.500" />,
  left: <path d="M9.500 4.500L6 8l3.500 3.500" />,
  plus: <path d="M8 3.500v9M3.500 8h9" />,
  more: <path d="M3.500 8h.1M8 8h.1M12.500 8h.1" strokeWidth="2.400" />,
  search: <path d="M7 11.500a4.500 4.500 0 1 0 0-9 4.500 4.500 0 0 0 0 9zM10.300 10.300L13.500 13.500" />,
  mail: <path d="M2.500 4h11v8.500h-11zM2.500 4.500L8 9l5.500-4.500" />,
  moon: <path d="M13 9.500A5.500 5.500 0 0 1 6.500 3a5.500 5.500 0 1 0 6.500 6.500z" />,
  sun: <path d="M8 10.500a2.500 2.500 0 1 0 0-5 2.500 2.500 0 0 0 0 5zM8 1.500v1.500M8 13v1.500M1.500 8H3M13 8h1.500M3.400 3.400l1 1M11.600 11.600l1 1M12.600 3.400l-1 1M4.400 11.600l-1 1" />,
  auto: <path d="M8 2.500a5.500 5.500 0 1 0 0 11zM8 2.500a5.500 5.500 0 0 1 0 11" />,
  pin: <path d="M6 2.500h4l-.5 4 2 2.500h-7l2-2.500zM8 9v4.500" />,
  up: <path d="M8 12.500v-9M4.500 7L8 3.500 11.500 7" />,
  down: <path d="M8 3.500v9M4.500 9L8 12.500 11.500 9" />,
  copy: <path d="M5.500 5.500h7v7h-7zM10.500 5.500v-2h-7v7h2" />,
  tag: <path d="M2.500 2.500H8l5.500 5.500L8 13.500 2.500 8zM5.200 5.200h.1" />,
  compare: <path d="M5 2.500v11M11 2.500v11M2.500 5h5M8.500 11h5" />,
  trash: <path d="M3 4.500h10M6 4.500V3h4v1.500M4.500 4.500l.5 9h6l.5-9" />,
  archive: <path d="M2.500 3.500h11v3h-11zM3.500 6.500v6h9v-6M6.500 9h3" />,
  export: <path d="M8 9.500v-7M5 5l3-3 3 3M3 9.500v4h10v-4" />,
  chart: <path d="M2.500 2.500v11h11M4.500 10.500l3-4 2.500 2 3-4.500" />,
  table: <path d="M2.500 3.500h11v9h-11zM2.500 6.500h11M6.500 3.500v9" />,
  columns: <path d="M2.500 3.500h11v9h-11zM6.200 3.500v9M9.800 3.500v9" />,
  group: <path d="M3 3.500h10v3H3zM3 9.500h10v3H3z" />,
  eye: <path d="M1.500 8S4 3.500 8 3.500 14.500 8 14.500 8 12 12.500 8 12.500 1.500 8 1.500 8zM8 10a2 2 0 1 0 0-4 2 2 0 0 0 0 4z" />,
  folder: <path d="M2 4h4l1.500 1.500H14v7H2z" />,
  file: <path d="M4 2h5l3 3v9H4zM9 2v3h3" />,
  link: <path d="M6.500 9.500l3-3M7 4.500l1.500-1.500a2.500 2.500 0 0 1 4 3.500L11 8M9 11.500L7.500 13a2.500 2.500 0 0 1-4-3.500L5 8" />,
  expand: <path d="M9.500 2.500h4v4M13.500 2.500L9 7M6.500 13.500h-4v-4M2.500 13.500L7 9" />,
  settings: <path d="M2.500 5h6M11.500 5h2M10 6.500a1.500 1.500 0 1 0 0-3 1.500 1.500 0 0 0 0 3zM2.500 11h2M7.500 11h6M6 12.500a1.500 1.500 0 1 0 0-3 1.500 1.500 0 0 0 0 3z" />,
  menu: <path d="M2.500 4.500h11M2.500 8h11M2.500 11.500h11" />,
  history: <path d="M2.500 3v3h3M2.800 6A5.500 5.500 0 1 1 2.500 9M8 5v3.500l2 1.500" />,
  edit: <path d="M10.500 3l2.500 2.500L6 12.500l-3 .5.500-3z" />,
  live: <path d="M8 9.200a1.200 1.200 0 1 0 0-2.400 1.200 1.200 0 0 0 0 2.400zM5 11a4.200 4.200 0 0 1 0-6M11 5a4.200 4.200 0 0 1 0 6" />,
  keyboard: <path d="M1.500 4.500h13v7.500h-13zM4 7h.1M6.700 7h.1M9.300 7h.1M12 7h.1M5 9.700h6" />,
} satisfies Record<string, ReactNode>;

export type IconName = keyof typeof paths;

export function Icon({ name, size = 16, className }: { name: IconName; size?: number; className?: string | undefined }) {
  return (
    <svg
      className={className}
      width={size}
      height={size}
      viewBox="0 0 16 16"
      fill="none"
      stroke="currentColor"
      strokeWidth="1.3"
      strokeLinecap="round"
      strokeLinejoin="round"
      aria-hidden="true"
      focusable="false"
    >
      {paths[name]}
    </svg>
  );
}
