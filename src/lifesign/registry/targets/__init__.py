"""Operations on targets, directories, opt-outs and links between agents and targets."""
