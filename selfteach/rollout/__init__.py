"""How an episode goes: programs `async (request, cast) -> answer` that methods share. No tokens by hand, no rewards, no learning."""
