"""The verdict on runs and its reasons for coding agents, as tools of the Model Context Protocol."""
