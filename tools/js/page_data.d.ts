// The data of the pages, as the JSDoc of sentinel/web/static names them. A field with a question mark
// is missing where nothing is known of it: in the state of a log, of an older agent, or in a report.

/** Start and end on an axis, or the lowest and the highest value. */
type Span = [number, number];
/** A value of each point; null where there is none, or where it is not finite. */
type Values = (number | null)[];
/** A metadata value or setting, as it was logged. */
type Setting = string | number | boolean | null | undefined;
type Severity = "critical" | "warning" | "info";
/** What stands in a cell of a table. */
type Cell = Node | string | number | boolean | null | undefined;
/** The child of an element; what is false or empty is left out. */
type Child = Node | string | false | null | undefined;
/** [value, text] of an option. */
type Option = [string, string];
/** JSON that was stored by another program: anything in it may be missing or wrong. */
type StoredJson = any;

// ---------------------------------------------------------------------------- the state of a run

/** GET api/run, and the event `run`. */
interface RunState {
  run: string;
  name?: string;
  state: string;
  step: number | null;
  cases: Case[];
  incidents: Incident[];
  silences: Silence[];
  signals: Record<string, SignalState>;
  logged: Record<string, number | string>;
  metadata: RunMetadata;
  /** Ranks by status, by integration. */
  patches: Record<string, Record<string, number[]>>;
  ranks: Record<string, RankState>;
  ranks_hidden?: number;
  attempt?: number;
  training?: number;
  started?: number | null;
  ended?: number | null;
  last_step_time?: number | null;
  last_checkpoint_time?: number | null;
  checkpoints?: number;
  tier?: string;
  host?: string;
  project?: string;
  tags?: string[];
  note?: RunNote | null;
  dashboard_url?: string;
  is_live?: boolean;
  is_listed?: boolean;
  verdict?: Verdict;
  /** What is only known of a run of which a log file is left. */
  log?: { notices?: Problem[] } | null;
  cluster?: Cluster | null;
  storage?: { text?: string; remedy?: string } | null;
  delivery_problems?: { text: string; remedy?: string }[];
  coverage?: string;
  monitored?: string[];
  unmonitored?: UnmonitoredKey[];
  machine?: Machine;
  stacks?: RankStack[];
  /** Changes with the results of insight; empty without any. */
  insight?: string;
  /** Whether the run measured its layers. */
  layers?: boolean;
}

interface RunMetadata {
  max_steps?: number;
  world_size?: number;
  local_world_size?: number;
  framework?: string;
  framework_version?: string;
  algorithm?: string;
  model?: string;
  host?: string;
  [name: string]: Setting;
}

interface SignalState {
  value: number | string | null;
  unit: string;
  help?: string;
  min?: number | null;
  max?: number | null;
  worst_rank?: number | null;
}

interface RankState {
  up: boolean;
  step?: number | null;
  step_time?: number | null;
  last_step_time?: number | null;
}

interface RankStack {
  ranks: number[];
  frames?: (string | Record<string, string | number>)[];
  text?: string;
}

interface Problem {
  text: string;
  remedy?: string;
  severity: string;
}

interface Cluster {
  role?: string;
  head?: string;
  connected?: boolean;
  error?: string;
  silent_seconds?: number;
  spooled_bytes?: number;
  nodes?: ClusterNode[];
}

interface ClusterNode {
  host: string;
  state: string;
  ranks: number[];
  silent_seconds?: number;
  skew_seconds?: number | null;
}

interface UnmonitoredKey {
  key: string;
  signal?: string | null;
}

interface Machine {
  host?: { host_cpu?: number; host_memory_used?: number; host_memory_total?: number };
  /** Free bytes by what the disk stores. */
  disks?: Record<string, number>;
  gpus?: Gpu[];
}

interface Gpu {
  gpu: number;
  name: string;
  ranks: number[];
  up: boolean;
  throttled?: string[];
  gpu_utilisation?: number;
  gpu_memory_used?: number;
  gpu_memory_total?: number;
  gpu_power?: number;
  gpu_temperature?: number;
  gpu_xid?: number;
  gpu_ecc_errors?: number;
}

interface RunNote {
  text: string;
  author?: string;
  time: number;
}

// ----------------------------------------------------------------------------- incidents and cases

interface Suppression {
  author?: string;
  comment?: string;
}

interface Acknowledgement extends Suppression {
  time: number;
}

interface Silence extends Suppression {
  detector?: string;
  ends_at: number;
}

interface Evidence {
  step: number | null;
  text: string;
}

interface Diagnosis {
  cause: string;
  title: string;
  evidence: Evidence[];
}

/** The parts of a notification. */
interface Message {
  subject: string;
  since: string;
  facts: string[];
  remedy?: string;
  checkpoint?: string;
  also: string[];
  notes: string[];
}

/** An incident of the state of a run, or of `api/incidents`. */
interface Incident {
  name: string;
  detector: string;
  severity: Severity;
  state: string;
  signal?: string;
  rank: number | null;
  summary: string;
  remedy: string;
  case?: string | null;
  onset_step: number;
  opened_step?: number;
  resolved_step?: number | null;
  resolution?: string;
  last_good_step?: number | null;
  onset?: { earliest: number; latest: number } | null;
  flaps?: number;
  evidence?: Record<string, string>;
  diagnosis?: Diagnosis | null;
  acknowledged?: Acknowledgement | null;
  silenced?: Silence | null;
}

/** A case of the state of a run, or of `api/cases`. */
interface Case {
  name: string;
  detector: string;
  severity: Severity;
  subject?: string;
  summary?: string;
  message: Message;
  diagnosis?: Diagnosis | null;
  /** Names of its incidents. */
  incidents: string[];
  ranks?: number[];
  onset_step: number;
  opened_step?: number;
  resolved_step?: number | null;
  resolution?: string;
  /** The present value of its signal, in words. */
  now?: string;
  /** What it was there at the end of, if it was never over. */
  lasted_until?: string;
  acknowledged?: Acknowledgement | null;
  silenced?: Silence | null;
  feedback?: Feedback | null;
}

/** What a person thinks of the notification of a case. */
interface Feedback {
  mark: string;
  time: number;
  author?: string;
  comment?: string;
}

/** GET api/timeline. */
interface Timeline {
  detectors: DetectorIntervals[];
  events: RunEvent[];
}

interface DetectorIntervals {
  detector: string;
  intervals: StateInterval[];
}

interface StateInterval {
  incident: string;
  severity: Severity;
  state: string;
  from_step: number;
  to_step: number | null;
  from_time: number;
  to_time: number | null;
}

/** An interval with what the charts show of its incident. */
interface MarkedInterval extends StateInterval {
  detector: string;
  signal?: string;
  summary: string;
  onset_step: number;
}

interface RunEvent {
  event: string;
  step: number | null;
  time: number | null;
}

/** A step and its time. */
interface ClockEntry {
  step: number;
  time: number;
}

/** A threshold of a detector over the run, of `api/thresholds`. */
interface Threshold {
  detector: string;
  x?: number[];
  time?: number[];
  value: Values;
}

/** GET api/set-up. */
interface SetUp {
  checks: SetUpCheck[];
  facts: { name: string; value: string }[];
}

interface SetUpCheck {
  check: string;
  detector: string;
  result: "found" | "passed" | "not checked";
  /** Of what was found. */
  severity: string;
  step: number | null;
  evidence: string;
  remedy: string;
}

interface Delivery {
  sink: string;
  state: string;
  reason: string;
  severity: string;
  incident?: string | null;
  tries: number;
  created: number;
  next_at?: number | null;
  finished_at?: number | null;
  last_error?: string | null;
}

// ------------------------------------------------------------------------------------------ series

/** An entry of `api/signals`. */
interface Signal {
  name: string;
  label?: string;
  unit?: string;
  help?: string;
  group?: string;
  event?: string;
  count: number;
  bad_count: number;
  latest?: number | null;
}

/** A signal in a chart: its curve may have a name of its own, and the number of a colour. */
interface ChartSignal {
  name: string;
  label?: string;
  unit?: string;
  help?: string;
  legend?: string;
  color?: number;
}

/** What a grid shows as one chart. */
interface ChartEntry {
  group: string;
  title: string;
  signals: ChartSignal[];
  limit?: number | null;
}

/** A curve in an answer of `api/series`. */
interface SeriesAnswer {
  x: number[];
  mean: Values;
  min?: Values;
  max?: Values;
  rank_min?: Values;
  rank_max?: Values;
  worst_rank?: Values;
  attempt?: number[];
  /** Positions of values that are not finite. */
  bad?: number[];
  /** Whether the points are the records themselves. */
  is_raw?: boolean;
  /** How many records the points have. */
  count?: number;
  last?: number | null;
}

/** GET api/series. */
interface SeriesAnswers {
  axis: string;
  series: Record<string, SeriesAnswer | null>;
  /** The first attempt of each training. */
  trainings?: number[];
  last_id?: number;
}

/** The points of a curve, all fields filled. */
interface Points {
  x: number[];
  mean: Values;
  min: Values;
  max: Values;
  rank_min: Values;
  rank_max: Values;
  worst_rank: Values;
  attempt: number[];
  /** How many of the points were fetched; the others are live rows. */
  fetched: number;
  bad: number[];
  isRaw: boolean;
  count: number;
  last: number;
  /** The steps of the points over the values of another signal. */
  step?: number[];
}

/** The event `rows`: new values of a live run. */
interface Rows {
  values: Record<string, Values>;
  /** Places of the values that are not finite. */
  bad?: Record<string, number[]>;
  attempt?: number[];
  ranks?: Record<string, { rank_min: Values; rank_max: Values; worst_rank: Values }>;
  trainings?: number[];
  step: Values;
  time: Values;
  tokens?: Values;
  [axis: string]: unknown;
}

interface RankGrid {
  signal: string;
  signals: string[];
  ranks: number[];
  x: number[];
  values: Values[];
}

/** GET api/layers. */
interface LayerGrid {
  statistic: string;
  statistics: string[];
  layers: string[];
  x: number[];
  values: Values[];
  /** Columns of each layer whose value is not finite. */
  bad: number[][];
  histograms?: { x: number | null; layer: Record<string, number[]> };
}

interface Sample {
  id?: number;
  step: number;
  rank: number;
  prompt: string;
  completion: string;
  rewards?: Record<string, number>;
  advantage?: number | null;
  length?: number | null;
  finished?: boolean | null;
}

interface MediaItem {
  id: string | number;
  kind: string;
  name: string;
  step: number;
}

interface MediaHistogram {
  edges: number[];
  counts: number[];
}

// ---------------------------------------------------------------------------------- list of runs

/** GET api/runs. */
interface RunList {
  total: number;
  matched: number;
  rows: number;
  runs: ListedRun[];
  groups: { name: string; count: number }[];
  states: Record<string, number>;
  notice?: string;
  read_seconds_ago: number | null;
  unanswered_seconds: number;
  unread_settings?: number;
}

interface ListedRun {
  run: string;
  name?: string;
  group: string;
  state: string;
  health?: string;
  worst_case?: { subject: string } | null;
  note?: string;
  settings?: Record<string, Setting>;
  project?: string;
  tags?: string[];
  sparkline?: { name: string; values: Values; last?: number | null } | null;
  step: number | null;
  age: number | null;
  last_written?: number;
  started?: number | null;
  host?: string;
  framework?: string;
  algorithm?: string;
  model?: string;
}

/** A setting of `api/settings`. */
interface ListedSetting {
  name: string;
  runs: number;
  values: number;
  text: string;
}

// ------------------------------------------------------------------------------------- comparison

/** GET api/compare. */
interface Comparison {
  axis: string;
  runs: ComparedRun[];
  /** The curves of each run, by signal. */
  series: ComparedSeries;
  other_axes: Record<string, ComparedSeries>;
  metrics: ComparedMetric[];
  problems: { title: string; cells: Case[][] }[];
  settings: { name: string; values: Setting[] }[];
  same_settings: number;
  insight?: ComparedInsight | null;
  what_changed?: WhatChanged;
}

/** Where the last run departs from the others, and what differs. */
interface WhatChanged {
  run: string;
  text: string;
  conclusion: string;
  departures: {
    signal: string;
    label: string;
    unit: string;
    step: number;
    value: number | null;
    low: number | null;
    high: number | null;
    effect: string;
  }[];
  differences: {
    name: string;
    also: string[];
    good: string;
    bad: string;
    departed: number;
    count: number;
    departed_without: number;
    count_without: number;
  }[];
}

type ComparedSeries = Record<string, (SeriesAnswer | null)[]>;

interface ComparedRun {
  run: string;
  name: string;
  health: string;
  state: string;
  step: number | null;
  seconds: number | null;
  cases: number;
  open_cases: number;
  lasting_cases: number;
  training_lasting_cases: number;
  note?: string;
  started: number | null;
  host?: string;
  framework?: string;
  algorithm?: string;
  model?: string;
}

/** Values that are not finite are texts. */
type JsonNumber = number | string | null;

interface ComparedMetric {
  signal: string;
  label: string;
  unit: string;
  group: string;
  better?: string | null;
  best_run: number | null;
  values: (ComparedValue | null)[];
}

interface ComparedValue {
  last: JsonNumber;
  final: JsonNumber;
  best: JsonNumber;
  best_x: number | null;
  at_common: JsonNumber;
  bad_count: number;
}

interface ComparedInsight {
  results: InsightItem[][];
  trajectory?: StoredJson;
  problem: string;
}

/** What a comparison asks for. */
interface ComparisonQuery {
  axis?: string;
  signals?: string[];
  start?: number | null;
  end?: number | null;
  points?: number | null;
}

// ---------------------------------------------------------------------------------------- reports

interface Report {
  generated: number;
  title: string;
  runs: ReportedRun[];
  comparison: Comparison | null;
}

interface ReportedRun {
  name: string;
  verdict: Verdict;
  /** Labels and texts. */
  verdict_parts: [string, string][];
  progress: string;
  results: ResultRow[];
  /** What the server answers, by path. */
  answers: Record<string, any>;
}

/** The keys that pages read, see docs/verdict.md. */
interface Verdict {
  status: string;
  title: string;
  sentence: string;
  severity: string | null;
  step: number | null;
  case: string | null;
}

/** A metric of a report. */
interface ResultRow {
  label: string;
  unit: string;
  better?: string | null;
  first: JsonNumber;
  last: JsonNumber;
  best: JsonNumber;
  best_x: number | null;
  min: JsonNumber;
  max: JsonNumber;
  bad_count: number;
}

// ---------------------------------------------------------------------------------------- insight

/** The header of a stored result of insight. */
interface InsightItem {
  id: string;
  kind: string;
  name?: string;
  title?: string;
  step?: number | null;
  time?: number;
  revision?: number | string;
}

interface InsightResult extends InsightItem {
  data: StoredJson;
}

/** A section that shows results of insight. */
interface InsightView {
  element: HTMLElement;
  show(items: InsightItem[]): void;
  note(): string;
}

interface SurfacePoint {
  x: number;
  y: number;
  loss: number | null;
  step?: number;
  kind?: string;
  evaluated?: boolean;
  /** Where it stands on a picture in three dimensions. */
  height?: number | null;
}

interface SurfaceDirection {
  kind?: string;
  name?: string;
  norm?: number;
  eigenvalue?: number;
  explained?: number;
}

/** The grid of a surface, or of a finer part of it. */
interface SurfaceGrid {
  x: number[];
  y: number[];
  loss: Values[];
}

/** A stored loss surface that was checked. */
interface Surface extends SurfaceGrid {
  is1d: boolean;
  regions: SurfaceGrid[];
  weightsNorm: number | null;
  estimatedError: number | null;
  lowest: number | null;
  highest: number | null;
  top: number | null;
  holes: number;
  center: SurfacePoint | null;
  path: SurfacePoint[];
  features: SurfacePoint[];
  /** [x, y, dx, dy] of the negative gradient. */
  arrows: [number, number, number, number][];
  points: SurfacePoint[];
  directions: SurfaceDirection[];
  sharpness: StoredJson;
  evaluations: number | null;
  seconds: number | null;
  parameters: number | null;
  selection: string;
  model: string;
  step: number | null;
  notes: string[];
}

interface Camera {
  eye: { x: number; y: number; z: number };
  [name: string]: unknown;
}

interface SurfaceOptions {
  is3d: boolean;
  isLog: boolean;
  hasPoints: boolean;
  hasArrows: boolean;
  limits: Span;
  camera?: Camera;
}

/** The path of the weights of a run. */
interface WeightPath {
  name: string;
  steps: number[];
  x: number[];
  y: number[];
  loss: Values;
  distances: Record<string, Values>;
  straightness: number | null;
  isRelative: boolean;
}

interface ColoredPath extends WeightPath {
  color: number;
}

interface PathPlane {
  paths: WeightPath[];
  explained: Values;
  reference: { x: number; y: number } | null;
  selection: string;
  parameters: number | null;
  notes: string[];
}

/** How the outcome depends on a setting. */
interface Dependence {
  x: Setting[];
  y: number[];
  low: number[];
  high: number[];
}

interface SettingImportance {
  name: string;
  label: string;
  kind?: string;
  isLog: boolean;
  curve: Dependence | null;
  importance: number;
  low: number;
  high: number;
  correlation: number;
  correlation_low: number;
  correlation_high: number;
  values_seen?: number;
  missing?: number;
}

/** The numbers of a setting, by which it has bars. */
type ImportanceKey = "importance" | "low" | "high" | "correlation" | "correlation_low" | "correlation_high";

interface ImportanceResult {
  outcome: string;
  better?: string;
  runs?: number;
  settings: SettingImportance[];
  columns: string[];
  rows: Setting[][];
  score: { r2: number; low: number; high: number } | null;
  notes: string[];
  constant: { name: string; value: Setting }[];
}

interface ParallelAxis {
  name: string;
  column: number;
  place: (value: Setting) => number;
  ticks: [number, string][];
}

// ------------------------------------------------------------------------------------------ charts

/** Traces and layouts are those of plotly.js. */
type PlotTrace = Record<string, any>;
type PlotLayout = Record<string, any>;
type PlotElement = HTMLElement & { on?: (event: string, listener: (event: any) => void) => void };

interface Plotly {
  react(element: HTMLElement, traces: PlotTrace[], layout: PlotLayout, config: object): Promise<unknown>;
  relayout(element: HTMLElement, changes: object): Promise<unknown>;
  purge(element: HTMLElement): void;
  toImage(figure: object, options: object): Promise<string>;
}

/** The library; null where the server has none, undefined before it was loaded. */
type MaybePlotly = Plotly | null | undefined;

interface PlotColors {
  series: string[];
  text: string;
  soft: string;
  edge: string;
  grid: string;
  surface: string;
  threshold: string;
  save: string;
  critical: string;
  warning: string;
  info: string;
}

interface PlotSize {
  width: number;
  height: number;
  colors: PlotColors;
}

interface PlotFigure {
  traces: PlotTrace[];
  layout: PlotLayout;
  /** For those who do not see the picture. */
  label: string;
}

type Picture = (size: PlotSize) => PlotFigure;
type ColorScale = [number, string][];

interface ColorBar {
  colorscale: ColorScale;
  range: number[];
  title: string;
  tickvals: number[];
  ticktext: string[];
  at?: "xaxis" | "scene";
}

/** A curve of a picture with data of its own. */
interface PlotCurve {
  name: string;
  x: number[];
  y: Values;
  color: number;
}

/** What the context draws: a chart, a picture, or the heat map of ranks. */
interface Drawable {
  element: HTMLElement;
  plot: PlotElement;
  names: string[];
  isBuilt: boolean;
  drawnWidth?: number;
  draw(plotly: MaybePlotly): void;
  destroy(plotly: MaybePlotly): void;
  showCursor?(position: number | null): void;
  showHighlight?(): void;
}

/** The points of a signal, and the indices of those in the shown range. */
interface ChartWindow {
  name: string;
  points: Points;
  inside: number[];
}

/** The point of a curve under the pointer. */
interface FoundPoint {
  name: string;
  points: Points;
  index: number;
  distance: number;
}

interface TooltipRow {
  label: string;
  texts: string[];
  color?: string;
  dash?: boolean;
  sample?: Node;
  isNearest?: boolean;
  top?: number;
}

interface Tooltip {
  title: string;
  heads?: string[];
  rows: TooltipRow[];
  note?: string;
}

// ------------------------------------------------------------------------------------------- page

interface SourceHandlers {
  rows?(rows: Rows): void;
  run?(run: RunState): void;
  reset?(): void;
  end?(): void;
  connection?(status: string): void;
}

/** Where the data come from: a server, a report, or the runs of a comparison. */
interface Source {
  isReport: boolean;
  getJson(path: string): Promise<any>;
  now(): number;
  subscribe(handlers: SourceHandlers): () => void;
  /** The curve of a signal in the run of a curve. */
  axisCurve?(signal: string, name: string): string;
}

/** The source of the page of a run. */
interface RunSource extends Source {
  post(path: string, body: object): Promise<any>;
  mediaUrl(item: MediaItem): string;
  getMediaJson(item: MediaItem): Promise<any>;
}

interface ViewState {
  axis: string;
  range: Span | null;
  smoothing: number;
  isLog: boolean;
  folded: string[];
  theme: string;
}

interface View extends ViewState {
  subscribe(listener: (view: View) => void): () => void;
  set(changes: Partial<ViewState>, isNewEntry?: boolean): void;
}

/** What charts need of a page. */
interface ChartPage {
  view: View;
  source: Source;
  run?: RunState | null;
}

/** What the sections of insight need of a page. */
interface InsightPage extends ChartPage {
  frame: Frame;
}

interface SearchTarget {
  text: string;
  kind: string;
  open(): void;
}

/** A section of the page. `T` is what its page shows: a run, or a comparison. */
interface Section<T = any> {
  id: string;
  title: string;
  element: HTMLElement;
  isClosed?: boolean;
  update(shown: T): void;
  urgency(shown: T): number;
  note?(shown: T): string;
  isShown?(shown: T): boolean;
  isEmpty?(shown: T): boolean;
  searchTargets?(): SearchTarget[];
}

interface FrameItem {
  section: Section;
  index: number;
  details: HTMLDetailsElement;
  note: HTMLElement;
  link: HTMLAnchorElement;
  entry: HTMLElement;
  urgency: number;
  wasUrgent: boolean;
  wasEmpty: boolean;
  isChosen: boolean;
  shown?: any;
}

interface Frame {
  element: HTMLElement;
  items: FrameItem[];
  update(shown: any): void;
  reveal(id: string): boolean;
  refresh(id: string): void;
  toggleAll(): void;
}

interface Toolbar {
  element: HTMLElement;
  toggle: HTMLElement;
  update(run: RunState): void;
  selectRange(index: number): void;
}

/** The page of a run. */
interface Page extends InsightPage {
  source: RunSource;
  run: RunState | null;
  pastCases: Case[];
  allIncidents: Incident[];
  toolbar: Toolbar;
  runbookUrl(name: string): string;
  reveal(id: string): boolean;
  setPastCases(cases: Case[]): void;
  /** Fetch `api/cases` again. */
  requestCases(): void;
  setIncidents(incidents: Incident[]): void;
  searchTargets(): SearchTarget[];
}

/** The page of a comparison. */
interface ComparisonPage extends ChartPage {
  comparison: Comparison;
  /** Numbers of the runs whose curves are hidden. */
  hidden: Set<number>;
  source: Source & { reset(): void };
  runUrl(run: ComparedRun, index: number): string;
  highlight(index: number | null): void;
}

interface FormField {
  element: HTMLElement;
  input: HTMLInputElement | HTMLTextAreaElement | HTMLSelectElement;
}

interface Loader {
  element: HTMLElement;
  isLoaded: boolean;
  request(): Promise<void>;
}

interface Tile {
  label: string;
  text: string;
  note?: string;
  share?: number | null;
  className?: string;
  isText?: boolean;
  isSecondary?: boolean;
}

/** The classes of the modules. */
type Chart = import("../../sentinel/web/static/charts/chart.js").Chart;
type ChartContext = import("../../sentinel/web/static/charts/context.js").ChartContext;
type ChartGrid = import("../../sentinel/web/static/charts/grid.js").ChartGrid;
type PlotChart = import("../../sentinel/web/static/charts/plot_chart.js").PlotChart;
type InsightSection = import("../../sentinel/web/static/sections/insight.js").InsightSection;

declare var Plotly: Plotly | undefined;

/** A chart of a grid, and the group in which it stands. */
interface GridEntry {
  key: string;
  group: string;
  chart: Chart;
}

/** Positions of points on an axis, as an answer or as points. */
interface AxisPositions {
  x: number[];
  mean: Values;
  attempt?: number[];
  is_raw?: boolean;
  isRaw?: boolean;
}

/** A setting with a curve of its dependence. */
interface ExplainedSetting extends SettingImportance {
  curve: Dependence;
}

interface LinesOptions {
  title: string;
  value?: string;
  unit?: string;
  range?: Span | null;
  isLog?: boolean;
  shapes?: PlotLayout[];
  noun?: string;
}

/** What the newest value of a curve is read from. */
interface SeriesEnd {
  x: number[];
  mean: Values;
  bad?: number[];
  last?: number | null;
}

interface SparkCurve {
  x: number[];
  values: Values;
  number: number;
}

type ComparisonLoader = (query: ComparisonQuery) => Promise<{ series: ComparedSeries }>;
/** The answer of the server of a run. */
type ResultLoader = (run: ComparedRun, index: number, path: string) => Promise<any>;
/** A stored result of the run with this number. */
type LoadResult = (index: number, id: string) => Promise<InsightResult>;

type SectionCreator = (page: Page) => Section<RunState> | Section<RunState>[];

/** What the list of runs shows. */
interface ListQuery {
  filter: string;
  sort: string;
  group: string;
  offset: number;
  columns: string[];
}

interface ListRow {
  element: HTMLElement;
  show?(run: ListedRun): void;
  updateChoice?(): void;
}

/** The steps of a case. */
interface CaseSteps {
  onset_step: number;
  opened_step?: number;
  resolved_step?: number | null;
}

/** Measures how long steps take. */
interface Pace {
  update(run: RunState): void;
  secondsPerStep(run: RunState): number | null;
}

interface FormDialog {
  title: string;
  text: string;
  fields: FormField[];
  submitText: string;
  submit(): Promise<unknown>;
  /** The message after a success. */
  done: string;
}

/** A part of a text, and whether it belongs to a repeated phrase. */
interface TextPiece {
  text: string;
  isRepeated: boolean;
}

type Timer = ReturnType<typeof setTimeout>;

/** A group of charts on the page. */
interface GridGroup {
  element: HTMLElement;
  grid: HTMLElement;
  count: HTMLElement;
  more: HTMLElement;
  toggle: HTMLElement;
  isUnfolded: boolean;
}

/** What plotly.js shows of a chart. */
interface DrawnChart {
  windows: ChartWindow[];
  range: Span;
  yaxis: PlotLayout;
  width: number;
  height: number;
  margin: { l: number; r: number; t: number; b: number };
}

/** A point of a curve, whose loss is on the scale of the axis. */
interface ScaledPoint extends Omit<SurfacePoint, "y"> {
  y: number | null;
}

/** Title, sort key, whether the first click sorts descending, and the class of the cells. */
type ListColumn = [string, string, boolean, string];

/** What the note in a header is about. */
type NotedRun = Pick<RunState, "run" | "name" | "note">;
