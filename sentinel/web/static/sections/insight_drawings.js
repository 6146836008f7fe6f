// What draws the results of insight; loaded when there is one.
import { insightDrawings } from "./insight.js";
import { createLossSurfaces } from "./loss_surface.js";

insightDrawings["loss-surface"] = createLossSurfaces;
