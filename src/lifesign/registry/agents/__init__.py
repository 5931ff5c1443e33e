"""Operations on agents."""
