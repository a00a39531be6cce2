"""Models behind an OpenAI-compatible server as agents: messages in, messages out.

```
evaluate.EndpointPlayer   plays tasks side by side, each once
  -> MessageDialogue      one episode's conversation, as chat messages
    -> http.Endpoint      sends requests, and retries failed or throttled ones
messages                  converts a server's reply to a turn, and back
refusals                  interprets the errors of many vendors
```

Such episodes have no token ids or log-probabilities: they can be judged, but not trained on.
"""
