"""Any model behind an OpenAI-compatible server as the agent: messages in, messages out.

```
evaluate.EndpointPlayer   plays tasks side by side, each once
  -> MessageDialogue      one episode's conversation, as chat messages
    -> http.Endpoint      asks the server, and repeats failed or throttled requests
messages                  from a server's reply to a turn, and back
refusals                  reads errors of many vendors
```

Such episodes have no token ids or log-probabilities: they can be judged, but not trained on.
"""
