"""The agent process: main loop, registration and discovery."""
