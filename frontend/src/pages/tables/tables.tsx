export function TablesPage() { return <p>TablesPage</p>; }
