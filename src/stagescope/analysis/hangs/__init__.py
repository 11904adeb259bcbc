"""Why a training does not go on: which rank holds it up, and which ranks wait for it."""
