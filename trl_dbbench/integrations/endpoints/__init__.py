"""Any model behind an OpenAI-compatible server as the agent: messages in, messages out.

```
play.EndpointPlayer   plays tasks side by side, each once
  -> MessageDialogue  one episode's talk: the turns so far, as chat messages
    -> http.Endpoint  asks the server, again where it fails or throttles
messages              what a reply means, and how it stands in the conversation afterwards
```

Such episodes have texts, and no token ids or log-probabilities: they can be judged, and not trained on.
"""
