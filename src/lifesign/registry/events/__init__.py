"""Operations on the event log, event streams, webhooks and archives."""
