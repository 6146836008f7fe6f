// What draws the results of insight; loaded when there is one.
import { insightDrawings } from "./insight.js";
import { createComparedPaths, createComparedSurfaces } from "./compared_insight.js";
import { createGradientFlow } from "./gradient_flow.js";
import { createImportance } from "./importance.js";
import { createLossSurfaces } from "./loss_surface.js";
import { createTrajectories } from "./trajectory.js";

insightDrawings["loss-surface"] = createLossSurfaces;
insightDrawings.trajectory = createTrajectories;
insightDrawings["gradient-flow"] = createGradientFlow;
insightDrawings["compared-surfaces"] = createComparedSurfaces;
insightDrawings["compared-paths"] = createComparedPaths;
insightDrawings.importance = createImportance;
