"""perdure: agents as explicit state machines that do not lose their place."""
