"""Tasks as an OpenEnv environment: a trainer resets it, steps through an episode, and gets its reward."""
