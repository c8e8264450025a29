"""From a prompt to tokens: models, sessions and streams, tokenizers, chat templates, sampling."""
